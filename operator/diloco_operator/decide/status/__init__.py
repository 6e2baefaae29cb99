"""What a job's status says. Pure."""
