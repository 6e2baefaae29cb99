"""Which pools' certificates the user has revoked, from an annotation of the job. Pure.

The annotation names regions and pools, each with a time: certificates that were made before it are replaced, and the
syncer refuses them. It says what holds, not what is to be done, so it can be carried out again at any time, and while
the cluster with the certificates is away.

`diloco cluster revoke` takes its times from the API server's clock. The certificates have the operator's.
"""

import datetime as dt
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from diloco.spec.words import shortlist
from diloco_operator.names import PoolKey
from diloco_operator.signing import CLOCK_SKEW, LEAF_LIFE

REVOKED: Final = "diloco.dev/revoked"
"""The annotation: ``REGION=TIME`` or ``REGION/POOL=TIME``, separated by commas; times in RFC 3339, UTC."""

_ENTRY: Final = re.compile(r"([a-z0-9-]+)(?:/([a-z0-9-]+))?=(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z)", re.ASCII)

_MOST_NAMED: Final = 8
_FORM: Final = "REGION=TIME or REGION/POOL=TIME; use a time such as 2026-03-01T12:00:00Z"


@dataclass(frozen=True, slots=True)
class Revoked:
    """What is revoked."""

    before: Mapping[PoolKey, dt.datetime] = field(default_factory=dict)
    """By pool: certificates made before this time."""
    problem: str = ""
    """What is wrong with the annotation; empty: nothing. Entries that are in order count in any case."""

    def file(self, now: dt.datetime) -> str:
        """What the syncer reads: pools whose revoked certificates may still be valid, one a line."""
        lines = (
            f"{pool} {time - CLOCK_SKEW:%Y-%m-%dT%H:%M:%SZ}\n"
            for pool, time in sorted(self.before.items())
            if now < time + LEAF_LIFE
        )
        return "".join(lines)


def revoked(annotation: str, pools: Iterable[PoolKey], now: dt.datetime) -> Revoked:
    """What the annotation says about these pools."""
    known, found, problem = tuple(pools), dict[PoolKey, dt.datetime](), ""
    for entry in filter(None, (one.strip() for one in annotation.split(","))):
        named, time, wrong = _read(entry, known, now)
        problem = problem or wrong
        if time is not None:
            found.update({pool: max(time, found.get(pool, time)) for pool in named})
    return Revoked(found, problem)


def _read(
    entry: str, known: tuple[PoolKey, ...], now: dt.datetime
) -> tuple[tuple[PoolKey, ...], dt.datetime | None, str]:
    """The pools and the time of an entry, or what is wrong with it."""
    where = f"metadata.annotations[{REVOKED}]"
    matched = _ENTRY.fullmatch(entry)
    time = None if matched is None else _time(matched[3])
    if matched is None or time is None:
        return (), None, f"{where}: {entry[:100]!r} is not {_FORM}"
    named = tuple(pool for pool in known if pool.region == matched[1] and matched[2] in (None, pool.pool))
    if not named:
        what = entry.partition("=")[0]
        return (), None, f"{where}: {what} is not a region or pool of spec.regions; use one of them"
    if time > now + CLOCK_SKEW:
        return (), None, f"{where}: {matched[3]} has not come yet; use a time that has passed"
    return named, time, ""


def not_in_force(annotation: str, pools: Iterable[PoolKey], now: dt.datetime, listed: str) -> str:
    """What the annotation says and the syncer was not told, for a job whose objects cannot be built; empty: nothing.

    Args:
        annotation: the annotation.
        pools: that have certificates.
        now: the time.
        listed: the list that the syncer has (`Revoked.file`).
    """
    known = tuple(pools)
    if not known:
        return ""
    said, told = revoked(annotation, known, now), set(listed.splitlines())
    if said.problem:
        return said.problem
    still = [line.partition(" ")[0] for line in said.file(now).splitlines() if line not in told]
    if not still:
        return ""
    named = shortlist(still, _MOST_NAMED)
    return (
        f"metadata.annotations[{REVOKED}]: has no effect on {named} while the manifest is refused; correct the manifest"
    )


def with_entry(annotation: str, what: str, now: dt.datetime) -> str:
    """The annotation with ``what`` (a region or ``region/pool``) revoked as of ``now``; the others stay.

    An entry for the same that is a little later stays too: of several API servers, each has its own clock.
    """
    others = [one.strip() for one in annotation.split(",") if one.strip()]
    kept = [one for one in others if one.partition("=")[0] != what]
    earlier = [_time(matched[3]) for one in others if one not in kept and (matched := _ENTRY.fullmatch(one))]
    # Certificates of the second that has begun are revoked too.
    until = now.replace(microsecond=0) + dt.timedelta(seconds=1)
    later = (time for time in earlier if time is not None and time <= now + CLOCK_SKEW)
    until = max([until, *later])
    return ",".join([*kept, f"{what}={until:%Y-%m-%dT%H:%M:%SZ}"])


def _time(text: str) -> dt.datetime | None:
    """A time in RFC 3339, UTC, without fractions; None: it is another text."""
    try:
        return dt.datetime.strptime(text, "%Y-%m-%dT%H:%M:%S%z")
    except ValueError:
        return None
