"""Whatever happens while nodes are avoided: only pods restart that have an outdated template, or crash on such a node.

The set, its controller and its pods are simulated; what is decided about them is the operator's own.
"""

import copy
import hashlib
import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from diloco_operator import labels
from diloco_operator.decide.drift import marked
from diloco_operator.decide.held_pods import as_held, holding
from diloco_operator.decide.observed import ChildKey, Object
from diloco_operator.decide.templates import TEMPLATE
from diloco_operator.decide.workloads import PoolWorkload
from diloco_operator.manifests.avoidance import avoided_by
from diloco_operator.manifests.holds import has_gate, is_on_delete
from diloco_operator.names import PoolKey
from testbed.virtual_cluster.world_pods import crashing, running

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
NAME = "job--here-pool"
LEARNERS = 4
NODES = ("a", "b", "c")
HASH = "controller-revision-hash"


def base(version: int) -> Object:
    """A set without anything held or avoided; ``version``: of its template."""
    template = {"metadata": {"labels": {"app": "learner"}}, "spec": {"containers": [{"name": "c", "image": version}]}}
    metadata = {"name": NAME, "annotations": {TEMPLATE: str(version)}}
    return {"kind": "StatefulSet", "metadata": metadata, "spec": {"replicas": LEARNERS, "template": template}}


def revision(item: Object) -> str:
    return hashlib.sha256(json.dumps(item["spec"]["template"], sort_keys=True).encode()).hexdigest()[:10]


@dataclass
class Scene:
    """A set with its controller, and the operator."""

    version: int = 0
    avoid: frozenset[str] = frozenset()
    held: frozenset[int] = frozenset()
    broken: frozenset[str] = frozenset()
    live: Object = field(default_factory=lambda: copy.deepcopy(base(0)))
    pods: dict[int, Object] = field(default_factory=dict)
    view: Object = field(default_factory=dict)
    """The set as its controller last saw it: watches lag."""
    serial: int = 0

    def __post_init__(self) -> None:
        self.live["metadata"] |= {"uid": "set", "generation": 1}
        self.live["status"] = {}
        for _ in range(2 * LEARNERS):
            self.watch()
            self.controller()
            self.kubelets()

    def operator(self) -> None:
        """One reconcile: apply, then delete."""
        workload = PoolWorkload(PoolKey("here", "pool"), ChildKey("StatefulSet", NAME), self.live, LEARNERS)
        workload = replace(workload, given_up=self.held, avoid=tuple(sorted(self.avoid)))
        found = holding(workload, copy.deepcopy(self.pods), NOW, 60.0, may_delete=True)
        wanted = marked(as_held(base(self.version), copy.deepcopy(self.live), found))
        spec = {"updateStrategy": {"type": "RollingUpdate"}, **wanted["spec"]}
        if spec != self.live["spec"]:
            self.live["metadata"]["generation"] += 1
        self.live["spec"] = copy.deepcopy(spec)
        self.live["metadata"]["annotations"] = dict(wanted["metadata"]["annotations"])
        for one in found.delete:
            index = int(one.child.name.rpartition("-")[2])
            assert self.pods[index]["metadata"]["uid"] == one.uid
            self.restart(index)

    def watch(self) -> None:
        self.view = copy.deepcopy(self.live)

    def controller(self) -> None:
        """One round: it creates one pod or replaces one, and reports."""
        update = revision(self.view)
        self.live["status"] = {
            "observedGeneration": self.view["metadata"]["generation"],
            "replicas": len(self.pods),
            "updateRevision": update,
        }
        missing = [index for index in range(LEARNERS) if index not in self.pods]
        for index in missing[:1]:
            self.create(index, update)
        old = [index for index, pod in self.pods.items() if pod["metadata"]["labels"][HASH] != update]
        if not (missing or is_on_delete(self.view)) and old:
            self.restart(max(old))

    def create(self, index: int, update: str) -> None:
        self.serial += 1
        template = copy.deepcopy(self.view["spec"]["template"])
        gone = avoided_by(template)
        node = (
            {} if has_gate(template["spec"]) else {"nodeName": min(NODES, key=lambda one: (one in gone, self.on(one)))}
        )
        self.pods[index] = {
            "metadata": {
                "name": f"{NAME}-{index}",
                "uid": f"pod-{self.serial}",
                "labels": {**template["metadata"]["labels"], HASH: update},
            },
            "spec": {**template["spec"], **node},
            "status": {},
        }

    def on(self, node: str) -> int:
        return sum(pod["spec"].get("nodeName") == node for pod in self.pods.values())

    def kubelets(self) -> None:
        for pod in self.pods.values():
            if "nodeName" in pod["spec"]:
                pod["status"] = crashing(NOW) if pod["spec"]["nodeName"] in self.broken else running(NOW)

    def restart(self, index: int) -> None:
        """A pod is deleted by the operator or by the controller: with good reason?"""
        pod = self.pods.pop(index)
        node, spec = pod["spec"].get("nodeName"), pod["spec"]
        templates = [item["spec"]["template"] for item in (self.live, self.view)]
        image = spec["containers"][0]["image"]
        outdated = any(image != one["spec"]["containers"][0]["image"] for one in templates)
        # What is to be avoided may have just ended; the template still says it then.
        moves = node in self.broken and node in {*self.avoid, *avoided_by(self.live["spec"]["template"])}
        assert outdated or moves or index in self.held or has_gate(spec), (index, node, pod["metadata"])
        assert not (moves and not outdated and index not in self.held and node in avoided_by(pod)), (
            "it knew of the node"
        )


nodes = st.frozensets(st.sampled_from(NODES), max_size=2)
steps = st.one_of(
    st.just(("operator", None)),
    st.just(("watch", None)),
    st.just(("controller", None)),
    st.just(("kubelets", None)),
    st.tuples(st.just("avoid"), nodes),
    st.tuples(st.just("broken"), nodes),
    st.tuples(st.just("version"), st.integers(0, 2)),
    st.tuples(st.just("held"), st.frozensets(st.integers(0, LEARNERS - 1), max_size=1)),
    st.tuples(st.just("dies"), st.integers(0, LEARNERS - 1)),
)


def happens(scene: Scene, what: str, value: Any) -> None:
    if what == "dies":
        scene.pods.pop(value, None)
    elif what in ("operator", "watch", "controller", "kubelets"):
        getattr(scene, what)()
    else:
        setattr(scene, what, value)


LAGGING = ["operator", "watch", "avoids nothing", "operator", "operator", "dies", "controller", "watch", "controller"]
"""The controller creates a pod from a template that it has seen, although the operator has changed it since."""


@settings(max_examples=150)
@example(
    [
        ("avoid", frozenset("a")),
        *({"dies": ("dies", 0), "avoids nothing": ("avoid", frozenset())}.get(one, (one, None)) for one in LAGGING),
    ]
)
@given(st.lists(steps, max_size=60))
def test_only_outdated_pods_and_those_that_crash_on_avoided_nodes_restart(life: list[tuple[str, Any]]) -> None:
    scene = Scene()
    for what, value in life:
        happens(scene, what, value)
    # Then it comes to rest, whatever has happened: every pod has the wanted template. Where learners crash on nodes
    # that are not avoided, a change waits for them, as it does for a StatefulSet's controller.
    scene.broken &= scene.avoid
    for _ in range(12 * LEARNERS):
        for actor in (scene.operator, scene.watch, scene.controller, scene.kubelets):
            actor()
    before = copy.deepcopy((scene.live, scene.pods))
    scene.operator()
    scene.watch()
    scene.controller()
    assert (scene.live, scene.pods) == before, "at rest nothing is done"
    images = {pod["spec"]["containers"][0]["image"] for index, pod in scene.pods.items() if index not in scene.held}
    assert images == {scene.version}
    assert set(avoided_by(scene.live["spec"]["template"])) == scene.avoid
    gated = {index for index, pod in scene.pods.items() if has_gate(pod["spec"])}
    assert gated == scene.held
    if not (scene.avoid or scene.held):
        assert is_on_delete(scene.live) == any(
            labels.REVISION in pod["metadata"]["labels"] for pod in scene.pods.values()
        )
