"""A closer look at an unhealthy job: its pods, and warning events about the pods, the sets and the claims.

It lists and never watches, so that pods of healthy jobs cost no requests. An API server reads all events of a namespace
before it filters them, so one list of all warnings is cheaper than one list for each pod.
"""

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from diloco_operator import labels
from diloco_operator.api_server.api import Selection
from diloco_operator.api_server.cache import without_managed_fields
from diloco_operator.api_server.errors import ForbiddenError
from diloco_operator.api_server.kinds import CLAIM, CORE_EVENT, NETWORK_POLICY, POD, Object
from diloco_operator.decide.causes.claims import claims_of
from diloco_operator.decide.causes.pods import is_ready, running_since
from diloco_operator.decide.observed import ChildKey, PodList, PodObserved
from diloco_operator.jobs.jobs import JobKey
from diloco_operator.jobs.observe.places import JobsCluster
from diloco_operator.objects import items_of, mapping, uid_of

_log = logging.getLogger(__name__)
MOST_EVENT_PAGES: Final = 10
"""Beyond 5,000 warnings in a namespace the rest is not read: the same causes repeat."""

_IDENTITY: Final = ("namespace", "name", "uid", "labels", "ownerReferences", "creationTimestamp", "deletionTimestamp")
_METADATA: Final = (*_IDENTITY, "finalizers")
_SPEC: Final = ("nodeName", "priority", "schedulingGates")
_GATED: Final = ("nodeSelector", "tolerations")
"""More of a pod that is held back: these can be added to."""
_STATUS: Final = ("phase", "reason", "message", "startTime", "conditions")
_CONTAINER_LISTS: Final = ("initContainerStatuses", "containerStatuses")
_CONTAINER: Final = ("name", "image", "ready", "restartCount", "state", "lastState")


async def look_closer(place: JobsCluster, job: JobKey, uid: str, children: Mapping[ChildKey, Object]) -> PodList:
    """List what explains why pods in one cluster are not ready.

    Raises:
        ApiError: a list failed.
    """
    # In another cluster a job of another home may have the same name.
    own = {labels.JOB: job.name} | ({labels.JOB_UID: uid} if place.cluster else {})
    selection = Selection(POD, place.namespace, labels=labels.text(own))
    # Page by page: the unreduced pods of a large job would take more memory than everything else together.
    pods = [slim_pod(pod) async for page in place.api.pages(selection) for pod in page.get("items") or ()]
    there = {key: child for key, child in children.items() if key.cluster == place.cluster}
    waiting = {name for pod in pods if not pod["spec"].get("nodeName") for name in claims_of(pod)}
    by_uid, by_claim = await _warnings(place, [*pods, *there.values()], waiting)
    of_claims = {ChildKey(CLAIM.name, name, place.cluster): tuple(events) for name, events in by_claim.items()}
    of_children = {key: tuple(by_uid[uid_of(child)]) for key, child in there.items() if uid_of(child) in by_uid}
    return PodList(
        pods=tuple(PodObserved(pod, tuple(by_uid.get(uid_of(pod), ())), place.cluster) for pod in pods),
        events=of_claims | of_children,
        claims=await _claims(place, pods),
        egress={place.cluster: await _egress(place)} if any(map(_waits, pods)) else {},
    )


def _waits(pod: Object) -> bool:
    """Whether its containers run, and it is not ready, as a learner is that has not joined."""
    return running_since(pod) is not None and not is_ready(pod)


async def _egress(place: JobsCluster) -> tuple[Object, ...]:
    """The NetworkPolicies that restrict what pods may connect to; of very many, the first page."""
    try:
        async for page in place.api.pages(Selection(NETWORK_POLICY, place.namespace)):
            found = [(one, mapping(one.get("spec"))) for one in page.get("items") or ()]
            return tuple(
                {"metadata": _only(one["metadata"], ("name",)), "spec": _only(spec, ("podSelector",))}
                for one, spec in found
                if "Egress" in items_of(spec.get("policyTypes"))
            )
    except ForbiddenError as error:
        _log.info("%s; whether they keep learners from the syncer is not told", error)
    return ()


def slim_pod(pod: Object) -> Object:
    """The parts of a pod that decisions read: its state, not its specification."""
    status = pod.get("status") or {}
    slim = _only(status, _STATUS)
    spec = pod.get("spec") or {}
    claims = (one for one in spec.get("volumes") or () if "persistentVolumeClaim" in one or "ephemeral" in one)
    volumes = [_volume(one) for one in claims]
    for field in _CONTAINER_LISTS:
        if status.get(field):
            slim[field] = [_only(one, _CONTAINER) for one in status[field]]
    return {
        "metadata": _only(pod["metadata"], _METADATA),
        "spec": {
            **_only(spec, (*_SPEC, *_GATED) if spec.get("schedulingGates") else _SPEC),
            **({"volumes": volumes} if volumes else {}),
        },
        "status": slim,
    }


def _volume(volume: Object) -> Object:
    """A volume's claim, if it has one."""
    return _only(volume, ("name", "persistentVolumeClaim")) | ({"ephemeral": {}} if "ephemeral" in volume else {})


def _only(given: Mapping[str, Any], fields: Iterable[str]) -> Object:
    return {field: given[field] for field in fields if field in given}


async def _warnings(
    place: JobsCluster, about: Iterable[Object], claims: Collection[str]
) -> tuple[Mapping[str, list[Object]], Mapping[str, list[Object]]]:
    """The warnings about objects, by their uids, and about claims, by their names: claims need not be read for it."""
    wanted = {uid_of(item) for item in about}
    found: dict[str, list[Object]] = defaultdict(list)
    by_claim: dict[str, list[Object]] = defaultdict(list)
    pages = 0
    async for page in place.api.pages(Selection(CORE_EVENT, place.namespace, fields="type=Warning")):
        for event in page.get("items") or ():
            involved = event.get("involvedObject") or {}
            uid = involved.get("uid")
            if uid in wanted:
                found[uid].append(without_managed_fields(event))
            elif involved.get("kind") == CLAIM.name and (name := str(involved.get("name"))) in claims:
                by_claim[name].append(without_managed_fields(event))
        pages += 1
        if pages >= MOST_EVENT_PAGES:
            break
    return found, by_claim


async def _claims(place: JobsCluster, pods: Iterable[Object]) -> Mapping[ChildKey, tuple[str, ...]]:
    """Access modes of the claims of pods that are being deleted. Those that cannot be read are missing."""
    leaving = [pod for pod in pods if pod["metadata"].get("deletionTimestamp")]
    wanted = {name for pod in leaving for name in claims_of(pod)}
    found: dict[ChildKey, tuple[str, ...]] = {}
    if not wanted:
        return found
    try:
        async for page in place.api.pages(Selection(CLAIM, place.namespace)):
            for claim in page.get("items") or ():
                name = str(claim["metadata"]["name"])
                if name in wanted:
                    modes = (claim.get("spec") or {}).get("accessModes") or ()
                    found[ChildKey(CLAIM.name, name, place.cluster)] = tuple(map(str, modes))
    except ForbiddenError as error:
        # The right to list claims is optional in another cluster: nothing but this needs it.
        _log.info("%s; pods that mount claims stay", error)
    return found
