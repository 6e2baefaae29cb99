"""The error for an argument that a plan cannot use."""


class PlanError(ValueError):
    """An argument cannot be used; the text names it, its value, and what to give instead."""
