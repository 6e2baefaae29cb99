"""Which of the clusters that jobs name are followed, where there are more than the operator has room for.

A namespace may take most of the room while it is alone, and never all of it: what others need is left. What was in use
before the operator was restarted comes first, so that no order in which jobs are read takes a slot away. Pure.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from diloco_operator.clusters.home import ClusterKey
from diloco_operator.shares import is_fair

MOST_CLUSTERS: Final = 100
"""Each has a connection for each of its watches, and with too many of them home itself would get none."""


class Claim(NamedTuple):
    """A job's claim on a slot for a cluster; of several the least counts."""

    new: bool
    """Whether the job's status does not say that it had one."""
    created: str
    """When the job was created, as the API server writes it."""


def with_slots(claims: Mapping[ClusterKey, Claim], followed: Collection[ClusterKey] = ()) -> frozenset[ClusterKey]:
    """The clusters that have a slot; `followed` are those that have one now, whatever their namespace's share is."""
    allotted: set[ClusterKey] = set()
    held: Counter[str] = Counter()
    for key in sorted(claims, key=lambda key: (claims[key].new, key not in followed, claims[key], key)):
        free = MOST_CLUSTERS - len(allotted) - 1
        if free >= 0 and (key in followed or is_fair(held[key.namespace] + 1, free)):
            allotted.add(key)
            held[key.namespace] += 1
    return frozenset(allotted)
