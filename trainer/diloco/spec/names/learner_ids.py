"""Splits a learner's id, ``region/pool/index``. Pure."""


def region_of(learner: str) -> str:
    """The region of a learner's id."""
    return learner.partition("/")[0]


def pool_of(learner: str) -> str:
    """Region and pool of a learner's id, ``region/pool``."""
    return learner.rpartition("/")[0]
