"""A cluster and a home in memory, for tests of what is swept and when."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from diloco_operator import labels
from diloco_operator.cluster.cache import GroupKey, ObjectKey
from diloco_operator.cluster.errors import ApiError, Call, ConflictError, NotFoundError
from diloco_operator.cluster.kinds import JOB, Kind, Object
from diloco_operator.clusters.home import ClusterKey
from diloco_operator.clusters.state import ClusterSeen, ClusterState
from diloco_operator.clusters.sweep_one import SweepHome, SweptPlace

HOME_ID = "home-1"
THERE = "theirs"
"""The namespace in the other cluster."""


def left(
    name: str, *, job: str = "demo", uid: str = "gone", home: str = HOME_ID, team: str = "team", kind: str = "Secret"
) -> Object:
    """An object that a job of a namespace has, or had, in another cluster."""
    own = {**labels.of_job(job, labels.LEARNER), **labels.of_home(home, team, uid)}
    return {"kind": kind, "metadata": {"namespace": THERE, "name": name, "uid": f"uid-of-{name}", "labels": own}}


@dataclass
class Home:
    """The API server at home, as far as jobs are asked for, and what the operator knows of them."""

    jobs: dict[tuple[str, str], str] = field(default_factory=dict)
    """Uid by namespace and name."""
    known: bool = True
    """The list of jobs is whole."""
    serves_jobs: bool = True
    errors: Mapping[str, ApiError] = field(default_factory=dict)
    """By job."""
    asked: list[str] = field(default_factory=list)
    swept: list[str] = field(default_factory=list)

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        assert kind == JOB
        self.asked.append(name)
        call = Call("get", kind.resource, namespace, name)
        if name in self.errors:
            raise self.errors[name]
        if not self.serves_jobs:
            raise NotFoundError(call, "404 page not found", code=404)
        if (namespace, name) not in self.jobs:
            raise NotFoundError(call, f'dilocojobs.diloco.dev "{name}" not found', code=404, about=name)
        return {"metadata": {"uid": self.jobs[namespace, name]}}

    @property
    def side(self) -> SweepHome:
        """As the sweeper has it."""
        api: Any = self
        return SweepHome(api, self._uids, (), self.swept.append)

    def _uids(self) -> set[str] | None:
        return set(self.jobs.values()) if self.known else None


@dataclass
class Far:
    """Another cluster."""

    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    errors: dict[str, ApiError] = field(default_factory=dict)
    """Of deletions, by the object's name."""
    failed: list[ApiError] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)
    lists: int = 0
    away: Exception | None = None
    answers_after_seconds: float = 0.0

    def put(self, *items: Object) -> None:
        self.objects |= {(item["kind"], item["metadata"]["name"]): item for item in items}

    @property
    def names(self) -> set[str]:
        return {name for _, name in self.objects}

    @property
    def place(self) -> SweptPlace:
        api: Any = self
        return SweptPlace("team/far", api, THERE, self.failed.append)

    @property
    def namespace(self) -> str:
        return THERE

    @property
    def api(self) -> Any:
        return self

    async def list_all(self, selector: str) -> list[Object]:
        assert f"{labels.HOME}={HOME_ID}" in selector
        self.lists += 1
        await asyncio.sleep(self.answers_after_seconds)
        if self.away is not None:
            raise self.away
        return list(self.objects.values())

    async def delete(self, kind: Kind, namespace: str, name: str, preconditions: Mapping[str, str]) -> None:
        assert namespace == THERE
        self.tried.append(name)
        call = Call("delete", kind.resource, namespace, name)
        if name in self.errors:
            raise self.errors[name]
        live = self.objects.get((kind.name, name))
        if live is None:
            raise NotFoundError(call, "not found", code=404)
        if preconditions != {"uid": live["metadata"]["uid"]}:
            raise ConflictError(call, "another uid", code=409)
        del self.objects[kind.name, name]


@dataclass
class Registry:
    """The clusters that jobs name, and the Secrets of others, in the place of `Clusters`."""

    home_id: str = HOME_ID
    named: dict[ClusterKey, "Remote"] = field(default_factory=dict)
    """Those in use."""
    kept: dict[ClusterKey, Far] = field(default_factory=dict)
    """Those whose Secret is there, used or not."""
    visits: list[ClusterKey] = field(default_factory=list)
    open_now: int = 0
    most_open: int = 0
    selector: str = f"{labels.HOME}={HOME_ID}"

    @property
    def used(self) -> dict[ClusterKey, Any]:
        return dict(self.named)

    @property
    def labelled(self) -> set[GroupKey]:
        return {GroupKey(key.namespace, key.secret) for key in self.kept}

    async def unused(self, secret: GroupKey) -> tuple[ClusterKey, ...]:
        return tuple(key for key in self.kept if (key.namespace, key.secret) == secret and key not in self.named)

    @asynccontextmanager
    async def visit(self, key: ClusterKey) -> AsyncIterator[Any]:
        far = self.kept[key]
        self.visits.append(key)
        self.open_now += 1
        self.most_open = max(self.most_open, self.open_now)
        try:
            yield SimpleNamespace(api=far, namespace=THERE, objects=far.list_all)
        finally:
            self.open_now -= 1


@dataclass
class Remote:
    """A cluster in use: what a session shows of it."""

    far: Far
    state: ClusterState = ClusterState.READY
    whole: bool = True
    returns: int = 0

    @property
    def newest(self) -> Any:
        items = [
            (ObjectKey(kind, item["metadata"]["namespace"], name), item)
            for (kind, name), item in self.far.objects.items()
        ]
        return SimpleNamespace(
            whole=self.whole,
            seen=ClusterSeen(self.state, settled=self.whole),
            cache=SimpleNamespace(everything=lambda: iter(items)),
            api=self.far,
            config=SimpleNamespace(namespace=THERE),
            failed=self.far.failed.append,
            returns=self.returns,
        )
