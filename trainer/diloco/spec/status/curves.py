"""A row of a job's curves: what people plot. A file of them has one JSON object a line."""

from typing import Final

from pydantic import BaseModel, ConfigDict

from diloco.spec.status.engine import TimeSeconds
from diloco.spec.status.syncer import RegionBytes

FILE: Final = "curves.jsonl"
"""In the syncer's directory."""


class _Values(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class LearnerCurve(_Values):
    """A learner's latest inner step."""

    steps: int
    """Inner steps so far, over all its processes."""
    tokens_per_second: float
    """Over the last half minute."""
    loss: float | None
    """In the task's unit; None if it was not a number."""
    gradient_norm: float | None
    """Global norm of the gradient before clipping; None if it was not a number."""
    learning_rate: float
    """AdamW's, or that of the first group of a loop's optimizer."""


class FragmentCurve(_Values):
    """A fragment's latest merge."""

    version: int
    gradient_norm: float
    """L2 norm of the merged outer gradient."""
    agreement: float
    """Length of the mean of the learners' directions, 0 to 1: 1 if they agree."""


class MergeCurve(_Values):
    """The latest merge."""

    fragment: int
    version: int
    members: int
    """Learners whose outer gradients are in it."""
    asked: int
    """Learners that were asked for one."""
    waited_seconds: float
    """From the first request to the merged fragment."""
    versions_behind: int
    """Age of the oldest outer gradient in it."""


class CurveRow(_Values):
    """All curves at one time."""

    epoch: int
    """Number of the syncer's start that wrote it; a later one may write the same tokens again."""
    unix_seconds: float
    merged_tokens: float
    inner_steps: int
    """Of all learners."""
    tokens_per_second: float
    """Merged tokens, over the last half minute."""
    eval_loss: float | None
    """Of the latest credible evaluation, in the task's unit."""
    learners: dict[str, LearnerCurve] = {}
    """By id; empty if the job has too many for a file."""
    fragments: dict[int, FragmentCurve] = {}
    merge: MergeCurve | None = None
    """None: nothing was merged yet."""
    time_seconds: TimeSeconds = {}
    """How the learner-seconds of the job were used, by class."""
    bytes_by_region: tuple[RegionBytes, ...] = ()
