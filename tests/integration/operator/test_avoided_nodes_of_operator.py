"""A node on which two learners keep crashing, on a real API server.

This test does what the StatefulSets' controller, the scheduler and kubelets do.
"""

import hashlib
import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

from diloco_operator.cluster.kinds import JOB, POD, STATEFUL_SET
from testbed.operator_process import OperatorProcess, eventually
from tests.support.operator_scene import Cluster, Start, manifest, reconciles_again

SET = "two--us-east-fast"
NODES = ("node-a", "node-b", "node-c")
BROKEN = "node-a"
HASH = "controller-revision-hash"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


class Actors:
    """The StatefulSets' controller, a scheduler and kubelets of one namespace."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.broken: set[str] = set()
        self.restarted: list[str] = []
        """Pods that the controller has deleted because of another template."""

    def act(self) -> None:
        """One round of each."""
        found = self.live()
        update, pods = revision(found), self.pods()
        for name, pod in pods.items():
            if "deletionTimestamp" in pod["metadata"]:
                self._request("DELETE", POD.path(self.cluster.namespace, name), {"gracePeriodSeconds": 0})
        there = {name: pod for name, pod in pods.items() if "deletionTimestamp" not in pod["metadata"]}
        for index in range(found["spec"]["replicas"]):
            if f"{SET}-{index}" not in pods:
                self._create(found, update, f"{SET}-{index}", there)
        for pod in there.values():
            self._run(pod)
        if found["spec"]["updateStrategy"]["type"] == "RollingUpdate":
            self._roll(there, update)
        self._report(found, update, there)

    def live(self) -> dict[str, Any]:
        found: dict[str, Any] = self._request("GET", STATEFUL_SET.path(self.cluster.namespace, SET))
        return found

    def pods(self) -> dict[str, dict[str, Any]]:
        items = self._request("GET", POD.path(self.cluster.namespace))["items"]
        return {one["metadata"]["name"]: one for one in items if one["metadata"]["name"].startswith(SET)}

    def uids(self) -> dict[str, str]:
        return {name: pod["metadata"]["uid"] for name, pod in self.pods().items()}

    def on(self, node: str) -> set[str]:
        return {name for name, pod in self.pods().items() if pod["spec"]["nodeName"] == node}

    def _create(self, found: dict[str, Any], update: str, name: str, there: dict[str, dict[str, Any]]) -> None:
        template = found["spec"]["template"]
        used = Counter(pod["spec"]["nodeName"] for pod in there.values())
        node = min(NODES, key=lambda one: (one in avoided(template), used[one], one))
        owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": SET, "uid": found["metadata"]["uid"]}
        metadata = {
            "name": name,
            "namespace": self.cluster.namespace,
            "labels": {**template["metadata"]["labels"], HASH: update},
            "ownerReferences": [{**owner, "controller": True}],
        }
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**template["spec"], "nodeName": node}}
        there[name] = self._request("POST", POD.path(self.cluster.namespace), body)

    def _run(self, pod: dict[str, Any]) -> None:
        crashes = pod["spec"]["nodeName"] in self.broken
        if pod.get("status", {}).get("containerStatuses") and is_ready(pod) != crashes:
            return
        pod["status"] = {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "False" if crashes else "True"}],
            "containerStatuses": [container(crashes=crashes)],
        }
        name = pod["metadata"]["name"]
        self._request("PUT", POD.path(self.cluster.namespace, name, "status"), pod)

    def _roll(self, there: dict[str, dict[str, Any]], update: str) -> None:
        old = [name for name, pod in there.items() if pod["metadata"]["labels"][HASH] != update]
        for name in sorted(old)[-1:]:
            self.restarted.append(name)
            self._request("DELETE", POD.path(self.cluster.namespace, name), {"gracePeriodSeconds": 0})

    def _report(self, found: dict[str, Any], update: str, there: dict[str, dict[str, Any]]) -> None:
        status = {
            "observedGeneration": found["metadata"]["generation"],
            "replicas": len(there),
            "readyReplicas": sum(map(is_ready, there.values())),
            "updatedReplicas": sum(pod["metadata"]["labels"].get(HASH) == update for pod in there.values()),
            "updateRevision": update,
        }
        if {key: found["status"].get(key) for key in status} != status:
            path = STATEFUL_SET.path(self.cluster.namespace, SET, "status")
            # The operator may have changed it since; then the next round reports.
            self.cluster.server.request("PUT", path, {**found, "status": status})

    def _request(self, method: str, path: str, body: object = None) -> Any:
        code, answer = self.cluster.server.request(method, path, body)
        assert code < 300, answer
        return answer


def revision(found: dict[str, Any]) -> str:
    """As the controller names it: equal for equal templates."""
    text = json.dumps(found["spec"]["template"], sort_keys=True)
    return f"{SET}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def avoided(template: dict[str, Any]) -> set[str]:
    terms = template["spec"].get("affinity", {}).get("nodeAffinity", {}).get(PREFERRED, [])
    return {one["values"][0] for term in terms for one in term["preference"]["matchFields"]}


def is_ready(pod: dict[str, Any]) -> bool:
    return {"Ready": "True"}.items() <= {
        one["type"]: one["status"] for one in pod.get("status", {}).get("conditions", [])
    }.items()


def container(*, crashes: bool) -> dict[str, Any]:
    def ago(seconds: float) -> str:
        return (datetime.now(UTC) - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")

    image = {"name": "learner", "image": "i", "imageID": "", "ready": not crashes, "restartCount": 3 * crashes}
    if not crashes:
        return {**image, "state": {"running": {"startedAt": ago(3600)}}}
    ended = {"exitCode": 1, "reason": "Error", "message": "CUDA error", "startedAt": ago(40), "finishedAt": ago(20)}
    return {
        **image,
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
        "lastState": {"terminated": ended},
    }


def running(cluster: Cluster, learners: int = 6) -> Actors:
    """A job with a pool of this many learners on three nodes, all of which are ready."""
    cluster.apply(manifest("two", {"us-east": {"fast": learners}}))
    eventually("its set is there", lambda: bool(cluster.get("statefulset", SET)))
    actors = Actors(cluster)

    def works() -> bool:
        actors.act()
        status = actors.live()["status"]
        return bool(status.get("readyReplicas") == status.get("updatedReplicas") == learners)

    eventually("its learners are ready", works)
    return actors


def template_of(actors: Actors) -> dict[str, Any]:
    found: dict[str, Any] = actors.live()["spec"]["template"]
    return found


def strategy(actors: Actors) -> str:
    return str(actors.live()["spec"]["updateStrategy"]["type"])


def leaves(actors: Actors, node: str) -> None:
    """A node breaks; wait until no learner is there."""
    actors.broken = {node}

    def has_moved() -> bool:
        actors.act()
        return not actors.on(node) and len(actors.pods()) == actors.live()["spec"]["replicas"]

    eventually("its learners are elsewhere", has_moved)


def ends(cluster: Cluster, actors: Actors) -> None:
    """Its time is over."""
    status = cluster.status("two")
    assert [one["node"] for one in status["avoidedNodes"]] == [BROKEN]
    code, job = cluster.server.request("GET", JOB.path(cluster.namespace, "two"))
    job["status"]["avoidedNodes"][0]["until"] = "2026-01-01T00:00:00Z"
    code, answer = cluster.server.request("PUT", JOB.path(cluster.namespace, "two", "status"), job)
    assert code < 300, answer
    actors.broken = set()

    def is_over() -> bool:
        actors.act()
        return not avoided(template_of(actors)) and not cluster.status("two").get("avoidedNodes")

    eventually("the node is no longer avoided", is_over)


def some_rounds(operator: OperatorProcess, actors: Actors) -> None:
    for _ in range(4):
        actors.act()
        reconciles_again(operator, times=1)


def test_learners_move_from_a_node_that_is_avoided_and_the_others_stay(cluster: Cluster, start: Start) -> None:
    with start() as operator:
        actors = running(cluster)
        template, before, victims = template_of(actors), actors.uids(), actors.on(BROKEN)
        assert len(victims) == 2

        leaves(actors, BROKEN)

        now = actors.uids()
        assert {name for name in before if now[name] != before[name]} == victims
        assert (strategy(actors), avoided(template_of(actors))) == ("OnDelete", {BROKEN})
        (told,) = cluster.status("two")["avoidedNodes"]
        assert told["learners"] == [f"us-east/fast/{name[-1]}" for name in sorted(victims)]
        reasons = Counter(event["reason"] for event in cluster.get("events.events.k8s.io")["items"])
        assert (reasons["NodeAvoided"], reasons["LearnerMoved"]) == (1, 2)
        assert operator.metric("learners_moved_total") == 2
        some_rounds(operator, actors)
        versions = cluster.versions()
        some_rounds(operator, actors)
        assert cluster.versions() == versions, "at rest nothing is written"

        ends(cluster, actors)

        assert template_of(actors) == template
        some_rounds(operator, actors)
        assert strategy(actors) == "OnDelete", "the controller would replace those that moved"
        for name in victims:
            cluster.kubectl("delete", "pod", name, "--force", "--grace-period=0")

        def is_as_before() -> bool:
            actors.act()
            return strategy(actors) == "RollingUpdate"

        eventually("the controller replaces pods again", is_as_before)
        some_rounds(operator, actors)
        assert actors.restarted == []
        now = actors.uids()
        assert {name for name in before if now[name] != before[name]} == victims
