"""The views of a run in progress."""
