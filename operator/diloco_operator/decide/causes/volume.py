"""Whether the syncer's volume is the one that holds the training, and what is wrong with it. Pure.

The status records the uid of the claim. If that claim is gone, or another one has its name, a syncer would silently
train from zero. So none is started unless the job's annotation says to continue without that claim.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from diloco_operator.decide.causes.cause import Cause
from diloco_operator.decide.objects.workloads import CLAIM, is_bound
from diloco_operator.decide.observed import ChildKey, Object
from diloco_operator.decide.reasons import Reason
from diloco_operator.decide.status.text import one_line

PROVISIONING_REASONS = ("ProvisioningFailed", "FailedBinding", "FailedMount")


START_ANEW: Final = "diloco.dev/start-anew"
"""Annotation of a job: the uid of the claim to continue without. It applies to one loss only."""


@dataclass(frozen=True, slots=True)
class Volume:
    """What is known of the claim that holds the training."""

    name: str
    remembered: str
    """The claim's uid in the status; empty: there has been no claim so far."""
    claim: Object | None
    """The job's own claim of that name."""
    start_anew: str
    """The job's annotation; empty: it has none."""

    @property
    def lost(self) -> bool:
        """Whether the claim that held the training is gone or replaced, and the annotation does not accept that."""
        return self.remembered not in ("", self.uid, self.start_anew)

    @property
    def uid(self) -> str:
        """The uid of the existing claim; empty: there is none."""
        return "" if self.claim is None else str(self.claim["metadata"]["uid"])

    @property
    def to_remember(self) -> str:
        """The uid to record in the status."""
        return self.remembered if self.lost or not self.uid else self.uid


def loss_causes(volume: Volume) -> list[Cause]:
    """The causes for a claim that is gone, replaced, or being deleted."""
    if volume.lost:
        what = "has been replaced" if volume.uid else "is gone"
        text = (
            f"claim {volume.name} {what}: the training was on the one with uid {volume.remembered}; "
            f"to start from zero, annotate the job with {START_ANEW}={volume.remembered}"
        )
        return [Cause(Reason.VOLUME_LOST, text)]
    if volume.claim is not None and volume.claim["metadata"].get("deletionTimestamp"):
        text = f"claim {volume.name} is being deleted: it and its checkpoints are lost when the syncer's pod ends"
        return [Cause(Reason.VOLUME_TERMINATING, text)]
    return []


def volume_causes(claim: Object | None, events: Mapping[ChildKey, tuple[Object, ...]]) -> list[Cause]:
    """The causes for the claim's volume. A claim that only waits for its first pod to be scheduled is not one."""
    if claim is None or is_bound(claim):
        return []
    name = str(claim["metadata"]["name"])
    if (claim.get("status") or {}).get("phase") == "Lost":
        return [Cause(Reason.VOLUME_LOST, f"the volume of claim {name} is gone")]
    told = [
        (str(event.get("lastTimestamp") or event.get("eventTime") or ""), str(event.get("message", "")))
        for event in events.get(ChildKey(CLAIM, name), ())
        if event.get("reason") in PROVISIONING_REASONS
    ]
    if not told:
        return []
    return [Cause(Reason.VOLUME_PENDING, f"claim {name} is pending: {one_line(max(told)[1])}")]
