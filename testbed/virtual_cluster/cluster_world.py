"""A namespace in virtual time with an API server in memory: several jobs, the real controller, errors of the server.

A wrong uid is a conflict, as on a real server. It does not depend on why something is applied.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from diloco_operator import labels
from diloco_operator.api_server.api import Selection
from diloco_operator.api_server.cache import Cache
from diloco_operator.api_server.errors import ApiError, Call, of_status
from diloco_operator.api_server.kinds import JOB, Kind
from diloco_operator.decide.observed import Observed, SyncerAway, SyncerStatusView
from diloco_operator.decide.plan import Plan
from diloco_operator.decide.reconcile import needs_pods, reconcile
from diloco_operator.jobs.jobs import JobKey, Jobs
from diloco_operator.jobs.observe.kueue import Kueue
from diloco_operator.jobs.observe.observer import Observer
from diloco_operator.jobs.observe.places import Places, slim
from diloco_operator.jobs.observe.syncer import Planned
from diloco_operator.jobs.reconciler import Controller
from diloco_operator.options import OperatorOptions
from diloco_operator.signing import RandomCertificateMaker
from testbed.virtual_cluster.namespace import ADDRESS, START, Namespace
from testbed.virtual_cluster.operator_world import OPTIONS, TICK_SECONDS, job_object
from testbed.virtual_cluster.world_pods import Object, Pods, copied
from testbed.virtual_cluster.world_syncer import WorldSyncer

NAMESPACE = "team"
_MOST_PASSES = 8
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

    home: Namespace
    failing: Failing = lambda *_: None
    writes: list[tuple[str, str, str]] = field(default_factory=list)
    events: list[Object] = field(default_factory=list)
    reverter: str = ""
    """Who changes objects that the operator applies; empty: nobody is known to."""

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Object:
        return copied(self._found(kind, namespace or "", name))

    async def find_metadata(self, kind: Kind, namespace: str, name: str) -> Object | None:
        del namespace
        return copied(self.home.objects.get((kind.name, name)))

    async def apply(self, kind: Kind, body: Object, *, force: bool = True) -> Object:
        name = str(body["metadata"]["name"])
        if not force and self.reverter:
            text = f'Apply failed with 1 conflict: conflict with "{self.reverter}": .spec'
            raise of_status(Call("patch", kind.resource, NAMESPACE, name), 409, {"message": text})
        self._written("apply", kind, name, body)
        return self.home.apply(body)

    async def overwrite(self, kind: Kind, patch: Object, *, subresource: str | None = None) -> Object:
        name = str(patch["metadata"]["name"])
        self._written("overwrite" if subresource is None else subresource, kind, name, patch)
        live = self._found(kind, NAMESPACE, name)
        for mark in {"uid", "resourceVersion"} & patch["metadata"].keys() & live["metadata"].keys():
            if live["metadata"][mark] != patch["metadata"][mark]:
                raise of_status(Call("patch", kind.resource, NAMESPACE, name), 409, {"message": f"{mark} mismatch"})
        if kind.name != "Pod":
            return self.home.put(_patched(live, patch))
        self.home.pods.pods[name] = _patched(live, patch)
        return copied(self.home.pods.pods[name])

    async def apply_status(self, kind: Kind, body: Object) -> Object:
        name = str(body["metadata"]["name"])
        self._written("status", kind, name, body)
        live = self._found(kind, NAMESPACE, name)
        return self.home.put({**live, "status": body["status"]})

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
        assert grace_seconds in (0, None)
        pods, call = self.home.pods, Call("delete", kind.resource, namespace, name)
        live = pods.pods.get(name) if kind.name == "Pod" else self.home.objects.get((kind.name, name))
        self._refused("delete", kind, name, {})
        if live is None:
            raise of_status(call, 404, {"message": "not found"})
        if live["metadata"]["uid"] != preconditions["uid"]:
            raise of_status(call, 409, {"message": "uid mismatch"})
        self.writes.append(("delete", kind.name, name))
        if kind.name != "Pod":
            self.home.delete(kind.name, name)
        elif grace_seconds == 0:
            del pods.pods[name]
        else:
            pods.delete(name)

    async def try_deletion(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        self._refused("delete", kind, name, {})
        live = self.home.pods.pods.get(name)
        if live is None or live["metadata"]["uid"] != uid:
            raise of_status(Call("delete", kind.resource, namespace, name), 404, {"message": "not found"})

    async def pages(self, selection: Selection) -> AsyncIterator[Object]:
        yield {"items": await self.items(selection), "metadata": {}}

    async def items(self, selection: Selection) -> list[Object]:
        self._refused("list", selection.kind, "", {})
        if selection.kind.name == "Event":
            return [
                {**event, "involvedObject": {"uid": uid}, "metadata": {"name": uid}}
                for uid, events in self.home.pods.events.items()
                for event in events
            ]
        if selection.kind.name in ("PersistentVolumeClaim", "NetworkPolicy"):
            return copied(list(self.home.of_kind(selection.kind.name).values()))
        wanted = dict(pair.split("=") for pair in selection.labels.split(","))
        pods = (pod for pod in self.home.pods.pods.values() if wanted.items() <= pod["metadata"]["labels"].items())
        return copied(list(pods))

    def _found(self, kind: Kind, namespace: str, name: str) -> Object:
        try:
            return self.home.pods.pods[name] if kind.name == "Pod" else self.home.objects[kind.name, name]
        except KeyError:
            raise of_status(Call("get", kind.resource, namespace, name), 404, {"message": "not found"}) from None

    def _written(self, verb: str, kind: Kind, name: str, body: Object) -> None:
        self._refused(verb, kind, name, body)
        self.writes.append((verb, kind.name, name))

    def _refused(self, verb: str, kind: Kind, name: str, body: Object) -> None:
        error = self.failing(verb, kind.name, name, body)
        if error is not None:
            raise error


@dataclass
class ClusterWorld:
    """A namespace with jobs and the operator's controller."""

    job_names: tuple[str, ...] = ("demo",)
    options: OperatorOptions = OPTIONS
    now: datetime = START
    missing_kueue: str = ""
    """Why there is no Kueue; empty: there is."""

    def __post_init__(self) -> None:
        self.home = Namespace(now=self.now)
        self.api = MemoryApi(self.home)
        self.syncers: dict[str, WorldSyncer] = {}
        self.new_operator()
        for number, name in enumerate(self.job_names):
            self.create(job_object(name, tokens=10_000_000), number)

    def new_operator(self, options: OperatorOptions | None = None) -> None:
        """Start a new operator process, without the memory of the last one."""
        self.options = options or self.options
        self.cache, self.jobs = Cache(labels.JOB), Jobs()
        places = Places(self.api, self.cache, ())  # type: ignore[arg-type] # in memory
        observer = Observer(
            places,
            self,  # type: ignore[arg-type] # in memory
            self._seconds,
            self._needs_pods,
            Kueue(self.api, self._seconds, self._missing_kueue),  # type: ignore[arg-type] # in memory
        )
        self.controller = Controller(
            self.api,  # type: ignore[arg-type] # in memory
            *(self.jobs, observer, self._decide, self._now, "test"),
        )

    # Methods, so that a copy of this world asks the copy.

    def _now(self) -> datetime:
        return self.now

    def _seconds(self) -> float:
        return (self.now - START).total_seconds() + 1000.0

    def _missing_kueue(self) -> str:
        return self.missing_kueue

    def _needs_pods(self, job: Object, observed: Observed) -> bool:
        return needs_pods(job, observed, self.now, self.options)

    def create(self, job: Object, number: int = 0) -> None:
        """Apply a job as a user."""
        name = str(job["metadata"]["name"])
        job["metadata"]["uid"] = f"0d1c0c0e-0000-4000-8000-{number:012d}"
        self.home.put(job)
        self.syncers[name] = WorldSyncer(name, job["spec"]["training"]["tokens"])

    def job(self, name: str = "demo") -> Object:
        return self.home.objects[JOB.name, name]

    def change(self, name: str = "demo", **spec: Any) -> None:
        """Change a job as a user."""
        job = copied(self.job(name))
        job["spec"] |= spec
        self.home.put(job)

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
        self.home.put(job)

    def status(self, name: str = "demo") -> Object:
        return self.job(name).get("status") or {}

    def condition(self, type_: str, name: str = "demo") -> Object:
        return next((one for one in self.status(name).get("conditions", ()) if one["type"] == type_), {})

    @property
    def pods(self) -> Pods:
        return self.home.pods

    async def ask(self, key: JobKey, address: str, planned: Planned) -> SyncerStatusView | SyncerAway:
        """A syncer's status (`SyncerClient`)."""
        del planned
        assert address == ADDRESS
        return SyncerStatusView.model_validate(self.syncers[key.name].status())

    def reconcile(self, name: str = "demo") -> ApiError | None:
        """Run the controller, after the watches have reported everything. Returns the error it failed with."""
        for _ in range(_MOST_PASSES):
            self.watch()
            try:
                if asyncio.run(self.controller.run(JobKey(NAMESPACE, name))) != 0.0:
                    return None
            except ApiError as error:
                return error
        raise AssertionError("the operator wants to go on at once for ever")

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
        for kind, name in list(self.home.objects):
            if kind == JOB.name:
                self.reconcile(name)

    def tick(self, seconds: float = TICK_SECONDS) -> None:
        self.now += timedelta(seconds=seconds)
        self.home.tick(self.now)
        for name, syncer in self.syncers.items():
            if syncer.runs_in(self.home.ready_syncer(name)):
                files = self.home.objects["ConfigMap", f"{name}-job"]["data"]
                syncer.reads(files)
                syncer.obey(files)
                syncer.trains(seconds, self.home.working_learners(name))

    def watch(self) -> None:
        """The watches report everything."""
        there = set()
        for (kind, name), item in self.home.objects.items():
            seen = copied(item)
            if kind == JOB.name:
                self.jobs.heard("MODIFIED", seen)
            elif (seen["metadata"].get("labels") or {}).get(labels.MANAGED_BY) == labels.FIELD_MANAGER:
                there.add((kind, name))
                self.cache.seen(kind, slim(seen))
        for key, item in list(self.cache._objects.items()):
            if (key.kind, key.name) not in there:
                gone = copied(item)
                gone["metadata"]["resourceVersion"] = str(self.home.version + 1)
                self.cache.gone(key.kind, gone)

    def _decide(self, job: Object, observed: Observed, now: datetime) -> Plan:
        return reconcile(job, observed, now, self.options, RandomCertificateMaker())


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
