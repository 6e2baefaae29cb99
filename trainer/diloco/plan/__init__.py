"""Computes whether a job and its links fit together, before anything runs: ``diloco plan``."""


class PlanError(ValueError):
    """An argument cannot be used; the text names it, its value, and what to give instead."""
