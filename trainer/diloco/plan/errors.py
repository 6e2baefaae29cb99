"""What can be wrong with what a plan is asked for, said in one line."""


class PlanError(ValueError):
    """An argument that cannot be used; the text names it, the value that stands there, and what to give instead."""
