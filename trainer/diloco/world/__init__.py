"""The conditions of a job that its manifest does not have, such as links and step times: as a file or as flags."""


class WorldError(ValueError):
    """A world or a flag of one cannot be used; the text names it, its value, and what to give instead."""
