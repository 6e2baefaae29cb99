"""What jobs that are gone left in another cluster, on two real API servers: it goes, and nothing else does."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

import pytest

from diloco_operator import labels
from diloco_operator.cluster.api import Api
from diloco_operator.cluster.connection import connect
from diloco_operator.cluster.kinds import CONFIG_MAP, JOB, SECRET, STATEFUL_SET, Kind, Object
from diloco_operator.clusters.state import ClusterState
from diloco_operator.clusters.sweep_one import SweepHome
from diloco_operator.clusters.sweeper import Sweeper
from testbed.api_server.server import ApiServer
from tests.support.closed_loop import run_until_closed
from tests.support.operator_scene import manifest
from tests.support.remote_scene import HOME_ID, Far, Scene, scene_at

KINDS = {kind.name: kind for kind in (CONFIG_MAP, SECRET, STATEFUL_SET)}
Uids = Callable[[], set[str] | None]


class Jobs:
    """The jobs of a namespace, as their API server has them."""

    def __init__(self, server: ApiServer, namespace: str) -> None:
        self.server, self.namespace = server, namespace
        self.known = True

    def make(self, name: str) -> str:
        """Returns its uid."""
        body = manifest(name)
        body["metadata"]["finalizers"] = ["diloco.dev/a-test"]
        status, made = self.server.request("POST", JOB.path(self.namespace), body)
        assert status == 201, made
        return str(made["metadata"]["uid"])

    def delete_by_force(self, name: str) -> None:
        """Delete it and remove its finalizer by hand."""
        path = JOB.path(self.namespace, name)
        self.server.request("DELETE", path)
        how = (f"--namespace={self.namespace}", "--type=merge", '--patch={"metadata": {"finalizers": null}}')
        self.server.kubectl("patch", "dilocojob", name, *how)

    def uids(self) -> set[str] | None:
        items = self.server.request("GET", JOB.path(self.namespace))[1]["items"] if self.known else None
        return None if items is None else {item["metadata"]["uid"] for item in items}


def leave(far: Far, team: str, job: str, uid: str, *, home: str = HOME_ID, suffix: str = "") -> None:
    """Put a StatefulSet, a Secret and a ConfigMap there, as a job has them."""
    own = {**labels.of_job(job, labels.LEARNER), **labels.of_home(home, team, uid)}
    template = {
        "metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "registry.example/c"}]},
    }
    spec = {"selector": {"matchLabels": {"a": "b"}}, "serviceName": job, "template": template}
    for kind in KINDS.values():
        body: Object = {
            "apiVersion": kind.api_version,
            "kind": kind.name,
            "metadata": {"namespace": far.namespace, "name": f"{job}{suffix}", "labels": own},
            **({"spec": spec} if kind is STATEFUL_SET else {}),
        }
        status, made = far.server.request("POST", kind.path(far.namespace), body)
        assert status == 201, made


def kinds_left(far: Far, name: str) -> set[str]:
    return {kind.name for kind in KINDS.values() if far.has(kind, name)}


def run(server: ApiServer, namespace: str, uids: Uids, scenario: Callable[[Scene], Awaitable[None]]) -> None:
    """A scenario beside a sweeper."""

    async def main() -> None:
        connection = await connect(server.kubeconfig, None)
        async with connection.open() as client, scene_at(server, namespace) as scene:
            home = SweepHome(Api(client, labels.FIELD_MANAGER), uids, (namespace,), lambda _: None)
            sweeper = Sweeper(scene.clusters, home, time.monotonic, random.random, 0.05, 0.5)
            running = asyncio.create_task(sweeper.run())
            try:
                await scenario(scene)
                assert not running.done()
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    run_until_closed(main())


async def gone(scene: Scene, far: Far, name: str) -> None:
    await scene.until(f"{name} is swept", lambda: not kinds_left(far, name))


async def swept_again(scene: Scene, far: Far, namespace: str) -> None:
    """Wait until there has been a sweep that began after now: an orphan put there now is gone."""
    name = f"witness-{random.randrange(10**9)}"
    leave(far, namespace, name, "a-uid-of-no-job")
    await gone(scene, far, name)


def test_what_a_finalizer_removed_by_hand_left_is_swept(server: ApiServer, namespace: str, far: Far) -> None:
    jobs = Jobs(server, namespace)
    for name in ("doomed", "kept"):
        leave(far, namespace, name, jobs.make(name))
    leave(far, namespace, "others", "uid-of-no-job", home="another-home")
    leave(far, "another-namespace", "of-others", "uid-of-no-job")

    async def scenario(scene: Scene) -> None:
        scene.secret("far", far.kubeconfig())
        scene.use("far")
        await scene.becomes(ClusterState.READY)
        await swept_again(scene, far, namespace)
        assert kinds_left(far, "doomed") == set(KINDS)
        await asyncio.to_thread(jobs.delete_by_force, "doomed")
        await gone(scene, far, "doomed")
        await swept_again(scene, far, namespace)
        for name in ("kept", "others", "of-others"):
            assert kinds_left(far, name) == set(KINDS)

    run(server, namespace, jobs.uids, scenario)


def test_a_job_that_is_being_deleted_keeps_its_objects(server: ApiServer, namespace: str, far: Far) -> None:
    jobs = Jobs(server, namespace)
    leave(far, namespace, "leaving", jobs.make("leaving"))
    server.request("DELETE", JOB.path(namespace, "leaving"))

    async def scenario(scene: Scene) -> None:
        scene.secret("far", far.kubeconfig())
        scene.use("far")
        await swept_again(scene, far, namespace)
        assert kinds_left(far, "leaving") == set(KINDS)

    # Even if the operator does not know of it.
    run(server, namespace, set, scenario)


def test_a_cluster_that_was_away_is_swept_when_it_is_back(
    server: ApiServer, namespace: str, far: Far, far_server: ApiServer
) -> None:
    jobs = Jobs(server, namespace)
    leave(far, namespace, "doomed", jobs.make("doomed"))

    async def scenario(scene: Scene) -> None:
        scene.secret("far", far.kubeconfig())
        scene.use("far")
        await scene.becomes(ClusterState.READY)
        await asyncio.to_thread(far_server.stop)
        await scene.becomes(ClusterState.UNREACHABLE)
        await asyncio.to_thread(jobs.delete_by_force, "doomed")
        await asyncio.to_thread(far_server.start)
        await gone(scene, far, "doomed")

    run(server, namespace, jobs.uids, scenario)


def test_a_cluster_that_no_job_names_is_swept_and_is_not_in_use(
    server: ApiServer, namespace: str, far: Far, far_server: ApiServer
) -> None:
    also = Far(far_server)
    for one in (far, also):
        leave(one, namespace, "doomed", "uid-of-no-job")
        leave(one, namespace, "others", "uid-of-no-job", home="another-home")

    async def scenario(scene: Scene) -> None:
        scene.secret("no-kubeconfig", "a: text of another kind")
        scene.secret("far", far.kubeconfig(), key="by-another-key")
        scene.secret("unlabelled", also.kubeconfig(), labelled=False)
        await gone(scene, far, "doomed")
        await swept_again(scene, far, namespace)
        assert scene.clusters.used == {}
        assert not {call for call in scene.requests if call.verb == "watch"}
        assert kinds_left(far, "others") == set(KINDS)
        assert kinds_left(also, "doomed") == set(KINDS), "its Secret has not the label"

    run(server, namespace, Jobs(server, namespace).uids, scenario)


def test_the_last_job_gone_by_force_leaves_nothing_there(server: ApiServer, namespace: str, far: Far) -> None:
    jobs = Jobs(server, namespace)
    leave(far, namespace, "doomed", jobs.make("doomed"))

    async def scenario(scene: Scene) -> None:
        scene.secret("far", far.kubeconfig())
        scene.use("far")
        await scene.becomes(ClusterState.READY)
        await asyncio.to_thread(jobs.delete_by_force, "doomed")
        scene.use()
        await gone(scene, far, "doomed")

    run(server, namespace, jobs.uids, scenario)


def test_a_job_restored_with_a_new_uid_loses_the_objects_of_the_old_one(
    server: ApiServer, namespace: str, far: Far
) -> None:
    jobs = Jobs(server, namespace)
    leave(far, namespace, "demo", jobs.make("demo"), suffix="-old")
    jobs.delete_by_force("demo")
    leave(far, namespace, "demo", jobs.make("demo"), suffix="-new")

    async def scenario(scene: Scene) -> None:
        scene.secret("far", far.kubeconfig())
        scene.use("far")
        await gone(scene, far, "demo-old")
        await swept_again(scene, far, namespace)
        assert kinds_left(far, "demo-new") == set(KINDS)

    run(server, namespace, jobs.uids, scenario)


def test_nothing_is_swept_before_the_list_of_jobs_is_whole(server: ApiServer, namespace: str, far: Far) -> None:
    jobs = Jobs(server, namespace)
    jobs.known = False
    leave(far, namespace, "doomed", "uid-of-no-job")

    async def scenario(scene: Scene) -> None:
        scene.secret("far", far.kubeconfig())
        scene.use("far")
        await scene.becomes(ClusterState.READY)
        asked = len(scene.requests)
        await scene.until("it was looked at again", lambda: len(scene.requests) > asked + 1)
        assert kinds_left(far, "doomed") == set(KINDS)
        jobs.known = True
        await gone(scene, far, "doomed")

    run(server, namespace, jobs.uids, scenario)


def test_a_home_that_serves_no_jobs_has_not_said_that_they_are_gone(far_server: ApiServer, far: Far) -> None:
    home = Far(far_server)  # a server without the definition of jobs
    leave(far, home.namespace, "doomed", "uid-of-a-job")
    asked: list[bool] = []

    def uids() -> set[str]:
        asked.append(True)
        return set()

    async def scenario(scene: Scene) -> None:
        scene.secret("far", far.kubeconfig())
        scene.use("far")
        await scene.becomes(ClusterState.READY)
        looked = len(asked)
        await scene.until("it was looked at again", lambda: len(asked) > looked + 20)
        assert kinds_left(far, "doomed") == set(KINDS)

    run(far_server, home.namespace, uids, scenario)


@pytest.mark.parametrize("kind", list(KINDS.values()), ids=lambda kind: kind.name)
def test_a_missing_right_keeps_only_what_it_is_about(kind: Kind, server: ApiServer, namespace: str, far: Far) -> None:
    far.allow(("delete", kind.plural))
    leave(far, namespace, "doomed", "uid-of-no-job")

    async def scenario(scene: Scene) -> None:
        scene.secret("far", far.kubeconfig())
        scene.use("far")
        await scene.until("the others go", lambda: kinds_left(far, "doomed") == {kind.name})
        await scene.becomes(ClusterState.FORBIDDEN)
        assert f"delete {kind.plural}" in scene.seen().message
        far.allow()
        await gone(scene, far, "doomed")

    run(server, namespace, Jobs(server, namespace).uids, scenario)
