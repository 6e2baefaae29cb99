"""``diloco chaos`` against a real API server: only the job's own pods are deleted, whatever labels others bear."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from diloco.cli.chaos_cluster import ROLE, ClusterPlace
from diloco.cli.cluster_access import connect
from diloco.cli.main import execute
from diloco.local.chaos.orders import Order
from diloco.local.chaos.spec import ChaosError, FaultKind
from diloco_operator import labels, names
from diloco_operator.names import PoolKey
from testbed.api_server.server import ApiServer, job_api_server, why_there_is_none

MANIFEST = yaml.safe_load((Path(__file__).resolve().parents[2] / "examples/two-regions/job.yaml").read_text("utf-8"))
POOLS = [PoolKey(region["name"], pool["name"]) for region in MANIFEST["spec"]["regions"] for pool in region["pools"]]
POOL = POOLS[0]
LEARNER = f"{POOL}/0"

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(why_there_is_none() is not None, reason=why_there_is_none() or ""),
]


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    with job_api_server() as made:
        yield made


class Namespace:
    """A namespace with jobs, whose objects the test makes as the operator and Kubernetes would."""

    def __init__(self, server: ApiServer, name: str) -> None:
        self.server = server
        self.name = name
        server.kubectl("create", "namespace", name)
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}}
        server.kubectl("apply", "--filename=-", text=yaml.safe_dump(account))

    def job(self, name: str) -> dict[str, Any]:
        """Make a job; returns the owner reference to it."""
        manifest = {**MANIFEST, "metadata": {"name": name, "namespace": self.name}}
        self.server.kubectl("apply", "--filename=-", text=yaml.safe_dump(manifest))
        return self.owner("dlj", name, "diloco.dev/v1alpha1", "DiLoCoJob")

    def owner(self, resource: str, name: str, version: str, kind: str) -> dict[str, Any]:
        said = self.server.kubectl("get", resource, name, f"--namespace={self.name}", "--output=json").stdout
        uid = json.loads(said)["metadata"]["uid"]
        return {"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": True}

    def make(self, version: str, kind: str, name: str, owner: dict[str, Any] | None, **rest: Any) -> None:
        said = rest.pop("labels", {})
        metadata = {"name": name, "namespace": self.name, "labels": said, "ownerReferences": [owner] if owner else []}
        made = {"apiVersion": version, "kind": kind, "metadata": metadata, **rest}
        self.server.kubectl("create", "--filename=-", text=yaml.safe_dump(made))

    def stateful_set(self, name: str, owner: dict[str, Any] | None) -> dict[str, Any]:
        template = {"metadata": {"labels": {"set": name}}, "spec": _POD}
        spec = {"serviceName": "none", "selector": {"matchLabels": {"set": name}}, "template": template, "replicas": 0}
        self.make("apps/v1", "StatefulSet", name, owner, spec=spec)
        return self.owner("statefulset", name, "apps/v1", "StatefulSet")

    def pod(self, name: str, said: dict[str, str], owner: dict[str, Any] | None) -> None:
        self.make("v1", "Pod", name, owner, spec=_POD, labels=said)

    def pods(self) -> set[str]:
        found = self.server.kubectl("get", "pods", f"--namespace={self.name}", "--output=name").stdout
        return {line.removeprefix("pod/") for line in found.split()}

    def place(self, job: str, kubeconfig: Path | None = None) -> ClusterPlace:
        return ClusterPlace(connect(kubeconfig or self.server.kubeconfig, None, {}), self.name, job)


_POD = {"containers": [{"name": "main", "image": "example/none"}], "automountServiceAccountToken": False}


def with_jobs(server: ApiServer, name: str) -> tuple[Namespace, str]:
    """Two jobs with a learner each, and pods that only bear the first one's labels; returns its learner's pod."""
    made = Namespace(server, name)
    set_name = names.stateful_set("mine", POOL)
    mine = made.stateful_set(set_name, made.job("mine"))
    theirs = made.stateful_set("theirs", made.job("theirs"))
    made.pod(f"{set_name}-0", labels.of_pool("mine", POOL), mine)
    made.pod("theirs-0", labels.of_pool("theirs", POOL), theirs)
    # Labels of mine, on pods of another job's set, of nobody's set, of none, and of one that was replaced since.
    made.pod("theirs-1", labels.of_pool("mine", POOL), theirs)
    made.pod("nobodys-0", labels.of_pool("mine", POOL), made.stateful_set("nobodys", None))
    made.pod("bare-0", labels.of_pool("mine", POOL), None)
    made.pod("stale-0", labels.of_pool("mine", POOL), mine | {"uid": "00000000-0000-0000-0000-000000000000"})
    return made, f"{set_name}-0"


def test_only_pods_that_the_job_owns_are_deleted(server: ApiServer) -> None:
    made, pod = with_jobs(server, "owned")
    before = made.pods()
    place = made.place("mine")
    everybody = place.learner_ids
    hit, refused = place.hit(Order(0.0, FaultKind.KILL, "*", (*everybody, "syncer")))
    assert hit == (LEARNER,)
    assert "has no pod" in refused
    assert made.pods() == before - {pod}
    # Nothing is left to hit, and nothing else is hit instead.
    assert place.hit(Order(0.0, FaultKind.EVICT, LEARNER, (LEARNER,))) == ((), f"{LEARNER}: has no pod")
    assert made.pods() == before - {pod}


def test_the_syncer_is_found_through_its_deployment(server: ApiServer) -> None:
    made = Namespace(server, "syncers")
    template = {"metadata": {"labels": {"a": "b"}}, "spec": _POD}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template, "replicas": 0}
    made.make("apps/v1", "Deployment", "mine-syncer", made.job("mine"), spec=spec)
    deployment = made.owner("deployment", "mine-syncer", "apps/v1", "Deployment")
    made.make("apps/v1", "ReplicaSet", "mine-syncer-1", deployment, spec=spec)
    replica_set = made.owner("replicaset", "mine-syncer-1", "apps/v1", "ReplicaSet")
    made.pod("mine-syncer-1-a", labels.of_job("mine", labels.SYNCER), replica_set)
    made.pod("another", labels.of_job("mine", labels.SYNCER), None)
    hit, refused = made.place("mine").hit(Order(0.0, FaultKind.KILL, "syncer", ("syncer",)))
    assert (hit, refused) == (("syncer",), "")
    assert made.pods() == {"another"}


def test_nothing_is_done_unasked(server: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    made, _ = with_jobs(server, "asked")
    before = made.pods()
    there = ("job/mine", "--namespace", made.name, "--kubeconfig", str(server.kubeconfig), "--for", "2s")
    kill = ("--fault", f"kill:{LEARNER}@at=0")
    assert execute(["chaos", *there, *kill]) == 2  # a test has no terminal
    assert "--yes: is needed where nobody can be asked" in capsys.readouterr().err
    assert execute(["chaos", *there, *kill, "--dry-run"]) == 0
    assert f"kill {LEARNER}" in capsys.readouterr().out
    assert made.pods() == before
    assert execute(["chaos", *there, "--fault", "kill:nowhere@at=0", "--yes"]) == 2
    assert "'nowhere' matches no learner of this job" in capsys.readouterr().err
    assert execute(["chaos", *there, "--pause-learners", "6", "--yes"]) == 2
    assert "--pause-learners: 6 cannot be used in a cluster" in capsys.readouterr().err
    assert execute(["chaos", "job/other", *there[1:], *kill, "--yes"]) == 2
    assert "no job other in namespace asked" in capsys.readouterr().err
    assert made.pods() == before


def test_a_session_deletes_and_reports(server: ApiServer, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    made, pod = with_jobs(server, "session")
    before = made.pods()
    report = tmp_path / "chaos.json"
    flags = ("--namespace", made.name, "--kubeconfig", str(server.kubeconfig), "--yes", "--json", str(report))
    kill = ("--fault", f"kill:{POOL.region}@at=0", "--for", "1s", "--settle", "0", "--seed", "5")
    assert execute(["chaos", "job/mine", *flags, *kill]) == 0
    assert made.pods() == before - {pod}
    assert f"kill {POOL.region}" in capsys.readouterr().out
    found = json.loads(report.read_text())
    assert (found["job"], found["seed"]) == ("mine", 5)
    (fault,) = found["faults"]
    assert (fault["victims"], fault["recovered"], fault["lost"]) == ([LEARNER], 0, 1)


def test_an_ended_job_is_left_alone(server: ApiServer) -> None:
    made, _ = with_jobs(server, "ended")
    patch = f"--patch={json.dumps({'status': {'phase': 'Complete'}})}"
    server.kubectl("patch", "dlj", "mine", f"--namespace={made.name}", "--subresource=status", "--type=merge", patch)
    with pytest.raises(ChaosError, match=r"JOB: mine has ended \(Complete\)"):
        made.place("mine")


def test_it_needs_rights_of_its_own_and_the_role_has_them(
    server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    made, pod = with_jobs(server, "rights")
    before = made.pods()
    erin = ("--kubeconfig", str(server.kubeconfig_for("erin")), "--namespace", made.name)
    kill = ("chaos", "job/mine", *erin, "--fault", f"kill:{LEARNER}@at=0", "--for", "1s", "--settle", "0", "--yes")
    assert execute([*kill]) == 2
    told = capsys.readouterr().err
    assert "not permitted" in told
    assert "diloco chaos --print-role" in told
    assert made.pods() == before
    assert execute(["chaos", "--print-role", "--namespace", made.name]) == 0
    server.kubectl("apply", "--filename=-", text=capsys.readouterr().out)
    server.kubectl("create", "rolebinding", ROLE, f"--namespace={made.name}", f"--role={ROLE}", "--user=erin")
    assert execute([*kill]) == 0
    assert made.pods() == before - {pod}
