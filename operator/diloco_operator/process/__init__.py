"""The operator's process: its parts, the queue of jobs, and what it says of itself."""
