"""What is wrong with the syncer's volume, from its claim and its warning events. Pure."""

from collections.abc import Mapping

from diloco_operator.observed import ChildKey, Object
from diloco_operator.policies.placement import Cause
from diloco_operator.policies.text import one_line
from diloco_operator.policies.workloads import CLAIM
from diloco_operator.reasons import Reason

PROVISIONING_REASONS = ("ProvisioningFailed", "FailedBinding", "FailedMount")


def is_bound(claim: Object | None) -> bool:
    """There is a volume behind the claim."""
    return ((claim or {}).get("status") or {}).get("phase") == "Bound"


def volume_causes(claim: Object | None, events: Mapping[ChildKey, tuple[Object, ...]]) -> list[Cause]:
    """Nothing is said of a claim that merely waits for its first pod to be scheduled."""
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
