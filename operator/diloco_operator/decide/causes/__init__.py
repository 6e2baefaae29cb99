"""Why a job is Degraded, one kind of cause per file."""
