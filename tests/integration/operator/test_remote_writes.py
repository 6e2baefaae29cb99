"""Writes of one plan to two clusters: what fails in one keeps nothing from being done at home."""

from diloco_operator import labels
from diloco_operator.api_server.api import Api
from diloco_operator.api_server.cache import Cache
from diloco_operator.api_server.kinds import CONFIG_MAP, Object
from diloco_operator.cluster_state import ClusterState
from diloco_operator.decide.observed import ChildKey
from diloco_operator.decide.plan import Plan
from diloco_operator.jobs.child_writes import ChildWrites
from diloco_operator.jobs.jobs import JobKey
from diloco_operator.jobs.observe.memory import Memory
from diloco_operator.jobs.observe.places import Places
from diloco_operator.manifests import Placed
from testbed.api_server.server import ApiServer
from tests.support.hand_clock import HandClock
from tests.support.remote_scene import Far, Scene, config_map

UID = "0d1c0c0e-0000-4000-8000-000000000000"


def wanted(name: str, namespace: str, cluster: str) -> Placed:
    body = config_map(namespace, name)
    body["metadata"]["labels"][labels.JOB_UID] = UID
    return Placed(body, cluster)


def plan(*objects: Placed) -> Plan:
    return Plan(again_in_seconds=1.0, apply=objects)


async def test_what_fails_in_one_cluster_ends_no_work_in_another(
    api: Api, scene: Scene, server: ApiServer, namespace: str, far: Far
) -> None:
    taken: Object = config_map(far.namespace, "taken", home="another")
    far.server.request("POST", CONFIG_MAP.path(far.namespace), taken)
    places = Places(api, Cache(labels.JOB), (), scene.clusters)
    memory = Memory(UID, HandClock())

    async def write(made: Plan) -> ChildWrites:
        writes = ChildWrites(places, JobKey(namespace, "job"), memory)
        await writes.find_foreign(made)
        await writes.apply(made)
        await writes.delete(made)
        return writes

    await scene.reach(far)
    await write(plan(wanted("a", far.namespace, "far"), wanted("a", namespace, "")))
    assert far.has(CONFIG_MAP, "a")
    assert server.request("GET", CONFIG_MAP.path(namespace, "a"))[0] == 200

    await write(plan(wanted("taken", far.namespace, "far")))
    assert memory.foreign == {ChildKey("ConfigMap", "taken", "far")}

    far.server.pause()
    try:
        writes = await write(plan(wanted("b", far.namespace, "far"), wanted("b", namespace, "")))
        assert writes.failure is None
        assert scene.seen().state is ClusterState.UNREACHABLE
        assert server.request("GET", CONFIG_MAP.path(namespace, "b"))[0] == 200
        sent = len(scene.requests)
        await write(plan(wanted("c", far.namespace, "far"), wanted("c", namespace, "")))
        assert not [call for call in scene.requests[sent:] if call.resource != "version"]
        assert server.request("GET", CONFIG_MAP.path(namespace, "c"))[0] == 200
    finally:
        far.server.resume()
    await scene.becomes(ClusterState.READY)
    made = Plan(again_in_seconds=1.0, delete=(ChildKey("ConfigMap", "a", "far"),))
    await scene.until("it is seen", lambda: "a" in scene.cached())
    await write(made)
    assert not far.has(CONFIG_MAP, "a")
