"""Which learner runs, and where. Pure."""
