"""The report of a run that has ended."""
