"""Which of a job's objects are applied or deleted. Pure."""
