"""Whether a job and its links go together, reckoned before anything runs."""
