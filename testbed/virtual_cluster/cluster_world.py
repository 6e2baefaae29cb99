"""A namespace in virtual time with an API server in memory: several jobs, the real controller, errors of the server.

Writes have the effects that they have on a real server: a field that is no longer applied disappears, a wrong uid is a
conflict, and an unknown field of a container is answered with 500. It does not depend on why something is applied.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from diloco_operator import labels
from diloco_operator.cluster.api import Selection
from diloco_operator.cluster.cache import Cache
from diloco_operator.cluster.errors import ApiError, Call, of_status
from diloco_operator.cluster.kinds import JOB, Kind
from diloco_operator.controller import Controller
from diloco_operator.decide.observed import Observed, SyncerAway, SyncerStatusView
from diloco_operator.decide.plan import Plan
from diloco_operator.decide.reconcile import reconcile
from diloco_operator.observe.jobs import JobKey, Jobs
from diloco_operator.observe.observer import Observer
from diloco_operator.observe.places import Places
from diloco_operator.options import OperatorOptions
from diloco_operator.signing import RandomCertificateMaker
from testbed.virtual_cluster.copied import copied
from testbed.virtual_cluster.operator_world import OPTIONS, START, TICK_SECONDS, job_object
from testbed.virtual_cluster.world_pods import Object, Pods, is_ready
from testbed.virtual_cluster.world_syncer import WorldSyncer

NAMESPACE = "team"
_RESOURCES = {"limits", "requests", "claims"}
Failing = Callable[[str, str, str, Object], ApiError | None]
"""Returns the error to answer with, given verb, kind, name and body."""


def of_server(code: int, message: str) -> Failing:
    """A server that answers every write of a set with this error."""

    def answer(verb: str, kind: str, name: str, body: Object) -> ApiError | None:
        asked = kind in ("StatefulSet", "Deployment") and (verb == "apply" or "template" in body.get("spec", {}))
        return of_status(Call(verb, kind, NAMESPACE, name), code, {"message": message}) if asked else None

    return answer


@dataclass
class MemoryApi:
    """Stands for `cluster.api.Api`."""

    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    """By kind and name."""
    failing: Failing = lambda *_: None
    writes: list[tuple[str, str, str]] = field(default_factory=list)
    events: list[Object] = field(default_factory=list)
    pods: Pods = field(default_factory=lambda: Pods(START))
    applied: dict[tuple[str, str], Object] = field(default_factory=dict)
    """What was applied last."""
    _version: int = 0

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        return copied(self._found(kind, namespace, name))

    async def find_metadata(self, kind: Kind, namespace: str, name: str) -> Object | None:
        del namespace
        return copied(self.objects.get((kind.name, name)))

    async def apply(self, kind: Kind, body: Object) -> Object:
        name = str(body["metadata"]["name"])
        self._written("apply", kind, name, body)
        _check_fields(body, Call("patch", kind.resource, NAMESPACE, name))
        key = (kind.name, name)
        live = self.objects.get(key)
        if live is None:
            self._version += 1
            live = {"metadata": {"uid": f"{kind.name}-{self._version}", "generation": 0}}
        merged = _merged(_without(live, self.applied.get(key, {}), body), body)
        self.applied[key] = copied(body)
        return self._stored(key, live, merged)

    async def overwrite(self, kind: Kind, patch: Object) -> Object:
        name = str(patch["metadata"]["name"])
        self._written("overwrite", kind, name, patch)
        live = self._found(kind, NAMESPACE, name)
        if live["metadata"]["uid"] != patch["metadata"].get("uid", live["metadata"]["uid"]):
            raise of_status(Call("patch", kind.resource, NAMESPACE, name), 409, {"message": "uid mismatch"})
        return self._stored((kind.name, name), live, _patched(live, patch))

    async def apply_status(self, kind: Kind, body: Object) -> Object:
        name = str(body["metadata"]["name"])
        self._written("status", kind, name, body)
        live = self._found(kind, NAMESPACE, name)
        return self._stored((kind.name, name), live, {**live, "status": copied(body["status"])})

    async def create(self, kind: Kind, body: Object) -> Object:
        del kind
        self.events.append(body)
        return body

    async def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        preconditions: Mapping[str, str],
        *,
        grace_seconds: int | None = None,
    ) -> None:
        if kind.name == "Pod":
            assert grace_seconds in (0, None)
            self._delete_pod(name, preconditions["uid"], by_force=grace_seconds == 0)
            return
        self._found(kind, namespace, name)
        self._written("delete", kind, name, {})
        del self.objects[kind.name, name]
        self.applied.pop((kind.name, name), None)

    def _delete_pod(self, name: str, uid: str, *, by_force: bool) -> None:
        call = Call("delete", "pods", NAMESPACE, name)
        error = self.failing("delete", "Pod", name, {})
        if error is not None:
            raise error
        if name not in self.pods.pods:
            raise of_status(call, 404, {"message": "not found"})
        if self.pods.pods[name]["metadata"]["uid"] != uid:
            raise of_status(call, 409, {"message": "uid mismatch"})
        self.writes.append(("delete", "Pod", name))
        if by_force:
            del self.pods.pods[name]
        else:
            self.pods.delete(name)

    async def pages(self, selection: Selection) -> AsyncIterator[Object]:
        yield {"items": await self.items(selection), "metadata": {}}

    async def items(self, selection: Selection) -> list[Object]:
        error = self.failing("list", selection.kind.name, "", {})
        if error is not None:
            raise error
        if selection.kind.name == "Event":
            return [
                {**event, "involvedObject": {"uid": uid}, "metadata": {"name": uid}}
                for uid, events in self.pods.events.items()
                for event in events
            ]
        if selection.kind.name == "PersistentVolumeClaim":
            return [copied(item) for (kind, _), item in self.objects.items() if kind == selection.kind.name]
        wanted = dict(pair.split("=") for pair in selection.labels.split(","))
        pods = (pod for pod in self.pods.pods.values() if wanted.items() <= pod["metadata"]["labels"].items())
        return copied(list(pods))

    def put(self, item: Object) -> None:
        """Write an object as another owner."""
        key = (item["kind"], item["metadata"]["name"])
        self._stored(key, self.objects.get(key, {"metadata": {"uid": f"theirs-{key}", "generation": 0}}), item)

    def _found(self, kind: Kind, namespace: str, name: str) -> Object:
        try:
            return self.objects[kind.name, name]
        except KeyError:
            raise of_status(Call("get", kind.resource, namespace, name), 404, {"message": "not found"}) from None

    def _written(self, verb: str, kind: Kind, name: str, body: Object) -> None:
        error = self.failing(verb, kind.name, name, body)
        if error is not None:
            raise error
        self.writes.append((verb, kind.name, name))

    def _stored(self, key: tuple[str, str], live: Object, item: Object) -> Object:
        self._version += 1
        changed = item.get("spec") != live.get("spec")
        metadata = {
            "uid": live["metadata"]["uid"],
            **item["metadata"],
            "resourceVersion": str(self._version),
            "generation": int(live["metadata"].get("generation") or 0) + changed,
        }
        self.objects[key] = copied({**item, "metadata": metadata})
        return copied(self.objects[key])


@dataclass
class ClusterWorld:
    """A namespace with jobs and the operator's controller."""

    job_names: tuple[str, ...] = ("demo",)
    options: OperatorOptions = OPTIONS
    now: datetime = START

    def __post_init__(self) -> None:
        self.api = MemoryApi()
        self.syncers: dict[str, WorldSyncer] = {}
        self._syncer_pods: dict[str, str] = {}
        self.new_operator()
        for number, name in enumerate(self.job_names):
            self.create(job_object(name, tokens=10_000_000), number)

    def new_operator(self, options: OperatorOptions | None = None) -> None:
        """Start a new operator process, without the memory of the last one."""
        self.options = options or self.options
        self.cache, self.jobs = Cache(labels.JOB), Jobs()
        places = Places(self.api, self.cache, ())  # type: ignore[arg-type] # in memory
        observer = Observer(places, self, lambda: (self.now - START).total_seconds() + 1000.0)  # type: ignore[arg-type] # in memory
        self.controller = Controller(
            self.api,  # type: ignore[arg-type] # in memory
            *(self.jobs, observer, self._decide, lambda: self.now, "test"),
        )

    def create(self, job: Object, number: int = 0) -> None:
        """Apply a job as a user."""
        name = str(job["metadata"]["name"])
        job["metadata"]["uid"] = f"0d1c0c0e-0000-4000-8000-{number:012d}"
        self.api.put(job)
        self.syncers[name] = WorldSyncer(name, job["spec"]["training"]["tokens"])

    def job(self, name: str = "demo") -> Object:
        return self.api.objects[JOB.name, name]

    def change(self, name: str = "demo", **spec: Any) -> None:
        """Change a job as a user."""
        job = copied(self.job(name))
        job["spec"] |= spec
        self.api.put(job)

    def change_pool(self, name: str = "demo", region: int = 0, **fields: Any) -> None:
        """Change a region's only pool as a user."""
        regions = copied(self.job(name)["spec"]["regions"])
        regions[region]["pools"][0] |= fields
        self.change(name, regions=regions)

    def annotate(self, name: str = "demo", **annotations: str) -> None:
        """Annotate a job as a user; ``_`` stands for ``-``, below diloco.dev."""
        job = copied(self.job(name))
        named = {f"diloco.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
        job["metadata"]["annotations"] = job["metadata"].get("annotations", {}) | named
        self.api.put(job)

    def status(self, name: str = "demo") -> Object:
        return self.job(name).get("status") or {}

    def condition(self, type_: str, name: str = "demo") -> Object:
        return next((one for one in self.status(name).get("conditions", ()) if one["type"] == type_), {})

    def of_kind(self, kind: str) -> dict[str, Object]:
        return {name: item for (its, name), item in self.api.objects.items() if its == kind}

    def pods_of(self, component: str, name: str = "demo") -> list[str]:
        wanted = {labels.COMPONENT: component, labels.JOB: name}
        return [
            pod["metadata"]["name"]
            for pod in self.api.pods.pods.values()
            if wanted.items() <= pod["metadata"]["labels"].items()
        ]

    async def ask(self, key: JobKey) -> SyncerStatusView | SyncerAway:
        """A syncer's status (`SyncerClient`)."""
        return SyncerStatusView.model_validate(self.syncers[key.name].status())

    def reconcile(self, name: str = "demo") -> ApiError | None:
        """Run the controller once, after the watches have reported everything. Returns the error it failed with."""
        self.watch()
        try:
            asyncio.run(self.controller.run(JobKey(NAMESPACE, name)))
        except ApiError as error:
            return error
        return None

    def run(self, seconds: float, every: float = TICK_SECONDS) -> None:
        """Let time pass; each tick the operator reconciles every job, and again if it has written anything."""
        until = self.now + timedelta(seconds=seconds)
        while self.now < until:
            written = len(self.api.writes)
            self._reconcile_all()
            if len(self.api.writes) != written:
                self._reconcile_all()
            self.tick(every)

    def _reconcile_all(self) -> None:
        for kind, name in list(self.api.objects):
            if kind == JOB.name:
                self.reconcile(name)

    def tick(self, seconds: float = TICK_SECONDS) -> None:
        """Time passes."""
        self.now += timedelta(seconds=seconds)
        pods = self.api.pods
        pods.now = self.now
        for again in (False, True):
            for (kind, _), item in self.api.objects.items():
                before = copied(item.get("status"))
                if kind in ("StatefulSet", "Deployment"):
                    pods.set_controller(item)
                elif kind == "PersistentVolumeClaim":
                    pods.claim_controller(item)
                if item.get("status") != before:
                    self.api._version += 1
                    item["metadata"]["resourceVersion"] = str(self.api._version)
            if not again:
                pods.kubelet()
        for name, syncer in self.syncers.items():
            self._train(name, syncer, seconds)

    def _train(self, name: str, syncer: WorldSyncer, seconds: float) -> None:
        running = [pod for pod in self.pods_of("syncer", name) if is_ready(self.api.pods.pods[pod])]
        if not running:
            return
        uid = self.api.pods.pods[running[0]]["metadata"]["uid"]
        if self._syncer_pods.get(name) != uid:
            self._syncer_pods[name] = uid
            syncer.started()
        syncer.obey(self.of_kind("ConfigMap")[f"{name}-job"]["data"])
        learners = []
        for pod_name in self.pods_of("learner", name):
            pod = self.api.pods.pods[pod_name]
            if is_ready(pod) and "deletionTimestamp" not in pod["metadata"]:
                its = pod["metadata"]["labels"]
                learners.append(f"{its[labels.REGION]}/{its[labels.POOL]}/{pod_name.rpartition('-')[2]}")
        syncer.trains(seconds, learners)

    def watch(self) -> None:
        """The watches report everything."""
        there = set()
        for (kind, name), item in self.api.objects.items():
            seen = copied(item)
            if kind == JOB.name:
                self.jobs.heard("MODIFIED", seen)
            elif (seen["metadata"].get("labels") or {}).get(labels.MANAGED_BY) == labels.FIELD_MANAGER:
                there.add((kind, name))
                self.cache.seen(kind, seen)
        for key, item in list(self.cache._objects.items()):
            if (key.kind, key.name) not in there:
                gone = copied(item)
                gone["metadata"]["resourceVersion"] = str(self.api._version + 1)
                self.cache.gone(key.kind, gone)

    def _decide(self, job: Object, observed: Observed, now: datetime) -> Plan:
        return reconcile(job, observed, now, self.options, RandomCertificateMaker())


def _merged(live: Any, desired: Any) -> Any:
    if not isinstance(live, dict) or not isinstance(desired, dict):
        return copied(desired)
    return {**live, **{key: _merged(live.get(key), value) for key, value in desired.items()}}


def _patched(live: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return copied(patch)
    kept = dict(live) if isinstance(live, dict) else {}
    for key, value in patch.items():
        if value is None:
            kept.pop(key, None)
        else:
            kept[key] = _patched(kept.get(key), value)
    return kept


def _without(live: Any, applied: Any, desired: Any) -> Any:
    """``live`` without the fields that were applied before and no longer are."""
    if not (isinstance(live, dict) and isinstance(applied, dict) and isinstance(desired, dict)):
        return live
    return {
        key: _without(value, applied.get(key), desired.get(key))
        for key, value in live.items()
        if key in desired or key not in applied
    }


def _check_fields(body: Object, call: Call) -> None:
    containers = body.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ())
    for container in containers:
        for unknown in sorted(set(container.get("resources") or ()) - _RESOURCES):
            path = f'.spec.template.spec.containers[name="{container["name"]}"].resources.{unknown}'
            what = f"{call.namespace}/{call.name}; apps/v1, Kind={body['kind']}"
            message = f"failed to create typed patch object ({what}): {path}: field not declared in schema"
            raise of_status(call, 500, {"message": message})
