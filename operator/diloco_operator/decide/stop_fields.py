"""The fields that stop a job. They work even if this version cannot read the rest of the manifest.

Pure. Each field is read separately; an invalid one is ignored.
"""

from dataclasses import dataclass
from typing import Any

from diloco_operator.decide.observed import Object


@dataclass(frozen=True, slots=True)
class StopFields:
    """The fields that stop or delete a job."""

    suspend: bool = False
    active_deadline_seconds: int | None = None
    ttl_seconds_after_finished: int | None = None


def stop_fields(job: Object) -> StopFields:
    """Read them from a job as the API server hands it out."""
    found = job.get("spec")
    spec: dict[str, Any] = found if isinstance(found, dict) else {}
    return StopFields(
        suspend=spec.get("suspend") is True,
        active_deadline_seconds=_seconds(spec.get("activeDeadlineSeconds")),
        ttl_seconds_after_finished=_seconds(spec.get("ttlSecondsAfterFinished")),
    )


def _seconds(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
