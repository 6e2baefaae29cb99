"""The status of a job, and the report of its syncer."""
