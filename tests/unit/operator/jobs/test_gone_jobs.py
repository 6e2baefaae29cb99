"""Jobs that go while nothing reports it."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from diloco_operator.api_server.api import Selection
from diloco_operator.api_server.cache import GroupKey
from diloco_operator.api_server.kinds import JOB, Kind
from diloco_operator.jobs.job_watch import COMPARE_SECONDS, JobWatch
from diloco_operator.jobs.jobs import JobKey, Jobs
from testbed.virtual_cluster.cluster_world import NAMESPACE, ClusterWorld
from tests.support.virtual_time import in_virtual_time

KEY = JobKey(NAMESPACE, "demo")
Object = dict[str, Any]


class Clusters:
    """Other clusters, of which is known which jobs use them."""

    def __init__(self) -> None:
        self.used: list[tuple[GroupKey, Mapping[Any, Any]]] = []

    def use(self, job: GroupKey, claims: Mapping[Any, Any]) -> None:
        self.used.append((job, claims))

    def of_job(self, *_: object) -> dict[str, Any]:
        return {}


def test_the_clusters_of_a_job_that_went_unseen_are_let_go() -> None:
    world, clusters = ClusterWorld(), Clusters()
    observer = world.controller.observer
    stand_in: Any = clusters
    observer = replace(observer, places=replace(observer.places, clusters=stand_in))
    world.controller = replace(world.controller, observer=observer)
    world.reconcile()
    assert KEY in world.controller._memories
    # Deleted while the watch of jobs was broken off: a later list just does not have it.
    del world.home.objects[JOB.name, "demo"]
    world.cache.listed("StatefulSet", None, (), 10**9)
    clusters.used.clear()
    asyncio.run(world.controller.run(KEY))
    assert clusters.used[-1] == (GroupKey(*KEY), {})
    assert KEY not in world.controller._memories
    assert world.jobs.get(KEY) is None


def job(name: str, version: int, namespace: str = NAMESPACE) -> Object:
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-of-{name}", "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {}}


@dataclass
class Server:
    """An API server with jobs, whose watch says nothing."""

    there: list[Object]
    version: int = 50
    read: list[str] = field(default_factory=list)

    async def pages(self, _: Selection) -> AsyncIterator[Object]:
        yield {"items": self.there, "metadata": {"resourceVersion": str(self.version)}}

    async def watch(self, *_: object) -> AsyncIterator[Object]:
        await asyncio.sleep(10_000)
        yield {}

    async def get(self, _kind: Kind, _namespace: str, name: str) -> Object:
        self.read.append(name)
        return next(one for one in self.there if one["metadata"]["name"] == name)


def heard(server: Server, jobs: Jobs, seconds: float = 2.5 * COMPARE_SECONDS) -> list[tuple[str, str]]:
    """What the second watch brings, of which the jobs are told."""
    told: list[tuple[str, str]] = []

    def take(event: str, item: Object) -> None:
        told.append((event, item["metadata"]["name"]))
        jobs.heard(event, item)

    async def main() -> None:
        api: Any = server
        watch = JobWatch(api, jobs, (), ("excluded",), take)
        watch.served.set()
        work = asyncio.create_task(watch.run())
        await asyncio.sleep(seconds)
        work.cancel()
        await asyncio.wait((work,))

    in_virtual_time(main())
    return told


def test_what_kopf_does_not_bring_is_read_and_what_is_gone_is_deleted() -> None:
    jobs = Jobs()
    for one in (job("same", 10), job("older", 10), job("gone", 20), job("new", 60)):
        jobs.put(one)
    server = Server([job("same", 10), job("older", 30), job("missed", 40), job("others", 5, "excluded")])
    told = heard(server, jobs)
    assert sorted(told) == [("DELETED", "gone"), ("MODIFIED", "missed"), ("MODIFIED", "older")]
    assert sorted(key.name for key in jobs) == ["missed", "new", "older", "same"]


def test_what_kopf_brings_in_time_is_not_read() -> None:
    server = Server([job("a", 10)])
    assert heard(server, Jobs(), seconds=1.5 * COMPARE_SECONDS) == []
    assert server.read == []
