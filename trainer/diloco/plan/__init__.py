"""What a job takes of links, devices and its syncer, and whether what became of its work is good enough."""


class PlanError(ValueError):
    """An argument cannot be used; the text names it, its value, and what to give instead."""
