"""Why a job is not as it should be, one kind of cause a file."""
