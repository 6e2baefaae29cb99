"""Finds kubeconfigs that lead to one namespace of one cluster by different addresses: both see the same objects. Pure.

Without this, each would be taken for a cluster in which the objects of the other one's regions are not wanted.
"""

from collections.abc import Mapping
from dataclasses import replace

from diloco_operator.clusters.state import ClusterSeen
from diloco_operator.decide.observed import ChildKey, Object


def with_same_places(seen: Mapping[str, ClusterSeen], children: Mapping[ChildKey, Object]) -> dict[str, ClusterSeen]:
    """``seen``, where each of several clusters that show an object with the same uid says so (`ClusterSeen.same_as`).

    API servers make uids at random. The owner of one cluster does not know those in another, so cannot pretend this.
    """
    by_uid: dict[str, set[str]] = {}
    for key, live in children.items():
        uid = live["metadata"].get("uid")
        if key.cluster in seen and isinstance(uid, str) and uid:
            by_uid.setdefault(uid, set()).add(key.cluster)
    found = dict(seen)
    for several in by_uid.values():
        for name in several if len(several) > 1 else ():
            if not found[name].same_as:
                found[name] = replace(found[name], same_as=min(several - {name}))
    return found
