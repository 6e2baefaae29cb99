"""Experiment trackers: a job's curves as the tools of the user's team show them."""
