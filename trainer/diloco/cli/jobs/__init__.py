"""Running a job on this machine, watching one anywhere, and reading what a run has left."""
