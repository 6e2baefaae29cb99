"""``diloco cluster orphans`` on a real API server: what is listed, what is left alone, what is deleted."""

import io
from pathlib import Path

import pytest
import yaml

from diloco_operator import labels
from diloco_operator.api_server.kinds import CLAIM, CONFIG_MAP, JOB, NAMESPACE, SECRET, STATEFUL_SET
from diloco_operator.labels import of_home
from testbed.api_server.server import ApiServer
from tests.support.operator_scene import manifest
from tests.support.remote_namespace import Done, Program

pytestmark = pytest.mark.processes
KINDS = (STATEFUL_SET, SECRET, CONFIG_MAP)
OTHER = "home-2"


@pytest.fixture(scope="module")
def server(job_server: ApiServer) -> ApiServer:
    """One server is home and remote cluster."""
    return job_server


@pytest.fixture(scope="module")
def home(server: ApiServer) -> str:
    """The id of this home."""
    return str(server.request("GET", NAMESPACE.path(None, "kube-system"))[1]["metadata"]["uid"])


class There:
    """A namespace of the remote cluster with objects of jobs."""

    def __init__(self, server: ApiServer, program: Program, name: str) -> None:
        self.server = server
        self.name = name
        self._program = program
        server.put(NAMESPACE.path(None), {"metadata": {"name": name}})

    def job(self) -> str:
        """A job at home; returns its uid."""
        return str(self.server.put(JOB.path(self.name), manifest("train"))["metadata"]["uid"])

    def has(self, name: str, home: str, uid: str) -> None:
        """Make a job's objects."""
        metadata = {"name": name, "labels": {**of_home(home, "training", uid), labels.JOB: "train"}}
        template = {
            "metadata": {"labels": {"a": name}},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        }
        spec = {"selector": {"matchLabels": {"a": name}}, "serviceName": "x", "template": template}
        self.server.put(STATEFUL_SET.path(self.name), {"metadata": metadata, "spec": spec})
        self.server.put(SECRET.path(self.name), {"metadata": metadata, "stringData": {"tls.key": "s3cret"}})
        self.server.put(CONFIG_MAP.path(self.name), {"metadata": metadata})

    @property
    def left(self) -> set[str]:
        """The names of the objects that are still there."""
        found = (self.server.request("GET", kind.path(self.name))[1]["items"] for kind in KINDS)
        return {item["metadata"]["name"] for items in found for item in items if item["metadata"].get("labels")}

    def as_user(self, kubeconfig: Path, *flags: str) -> Done:
        """Run it with another user's kubeconfig."""
        return self._program.run("orphans", *flags, "--kubeconfig", str(kubeconfig))

    def orphans(self, *flags: str) -> tuple[int, str]:
        """Exit code and output, for this namespace."""
        code, out, err = self._program.there("orphans", "--namespace", self.name, *flags)
        assert "s3cret" not in out + err
        return code, out + err


@pytest.fixture
def there(
    server: ApiServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> There:
    monkeypatch.delenv("COLUMNS", raising=False)
    return There(server, Program(server, capsys), request.node.name.replace("_", "-")[:63].strip("-"))


def test_without_a_home_everything_is_listed_and_nothing_judged(there: There, home: str) -> None:
    assert there.orphans() == (0, "no objects of another home\n")
    there.has("a", home, "uid-1")
    there.has("b", OTHER, "uid-2")
    code, told = there.orphans()
    assert code == 0
    rows = [line.split() for line in told.splitlines()[1:]]
    assert {(row[0], row[1], row[2]) for row in rows} == {
        (home, "training/train", "uid-1"),
        (OTHER, "training/train", "uid-2"),
    }
    assert len(rows) == 6
    assert "jobs were not looked up" in told


def test_objects_of_a_job_that_exists_at_home_are_left_alone(there: There, home: str) -> None:
    there.has("alive", home, there.job())
    there.has("orphan", home, "uid-of-no-job")
    there.has("other", OTHER, "uid-of-no-job")
    flags = ("--home", home, "--home-context", "test")
    assert {line.split()[5] for line in there.orphans(*flags)[1].splitlines()[1:]} == {f"{there.name}/orphan"}
    code, told = there.orphans("--home-context", "test", "--delete", "--yes")  # the home is known by its context alone
    assert code == 0
    assert told.endswith("3 of 3 object(s) deleted\n")
    assert there.left == {"alive", "other"}
    assert there.orphans(*flags) == (0, f"no orphans: the jobs of home {home} exist\n")


def test_claims_that_a_job_retained_are_deleted_only_if_asked_for(there: There, home: str, server: ApiServer) -> None:
    there.has("a", home, "uid-1")
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    metadata = {"name": "state-a-0", "labels": {**of_home(home, "training", "uid-1"), labels.JOB: "train"}}
    server.put(CLAIM.path(there.name), {"metadata": metadata, "spec": spec})

    def retained() -> list[str]:
        return [item["metadata"]["name"] for item in server.request("GET", CLAIM.path(there.name))[1]["items"]]

    assert f"PersistentVolumeClaim {there.name}/state-a-0" in there.orphans("--home", home)[1]
    code, told = there.orphans("--home", home, "--delete", "--yes")
    assert (code, there.left) == (0, set())
    assert "3 of 3 object(s) deleted" in told
    assert "1 claim(s) stay; to delete them too, add --claims" in told
    assert retained() == ["state-a-0"]
    assert "object(s) deleted" not in there.orphans("--home", home, "--delete", "--yes")[1]
    assert there.orphans("--home", home, "--claims")[0] == 2
    no_finalizers = ("--type=merge", '--patch={"metadata":{"finalizers":null}}')
    server.kubectl("patch", "pvc", "state-a-0", f"--namespace={there.name}", *no_finalizers)
    code, told = there.orphans("--home", home, "--delete", "--claims", "--yes")
    assert (code, retained()) == (0, [])
    assert "1 of 1 object(s) deleted" in told


def test_the_context_of_another_home_deletes_nothing(there: There, home: str) -> None:
    there.has("a", OTHER, "uid-1")
    told = f"diloco: --home: {OTHER} is not the home at --home-context, which is {home}; use one of them\n"
    assert there.orphans("--home", OTHER, "--home-context", "test", "--delete", "--yes") == (2, told)
    assert there.left == {"a"}


def test_a_home_whose_id_one_may_not_read_needs_the_id(there: There, home: str, server: ApiServer) -> None:
    there.has("alive", home, there.job())
    there.has("orphan", home, "uid-of-no-job")
    server.kubectl("create", "clusterrole", "look-at-jobs", "--verb=list", "--resource=dilocojobs.diloco.dev")
    server.kubectl("create", "clusterrolebinding", "erin", "--clusterrole=look-at-jobs", "--user=erin")
    resources = "--resource=statefulsets,secrets,configmaps,services,networkpolicies,persistentvolumeclaims"
    server.kubectl("create", "role", "tidy", "--verb=list,delete", resources, f"--namespace={there.name}")
    server.bind("tidy", "erin", there.name)
    erin = server.kubeconfig_for("erin")
    context = yaml.safe_load(erin.read_text())["current-context"]
    flags = ("--namespace", there.name, "--home-context", context, "--delete", "--yes")
    code, _, told = there.as_user(erin, *flags)
    assert (code, "use --home to give the id" in told) == (2, True)
    assert there.left == {"alive", "orphan"}
    code, _, told = there.as_user(erin, *flags, "--home", home)
    assert (code, "--home: cannot be compared with the id at --home-context" in told) == (0, True)
    assert there.left == {"alive"}


def test_all_of_a_home_that_is_gone_is_deleted_and_no_other(there: There, home: str) -> None:
    there.has("a", home, "uid-1")
    there.has("b", home, "uid-2")
    there.has("other", OTHER, "uid-3")
    code, told = there.orphans("--home", home, "--delete", "--yes")
    assert (code, "counts as gone" in told) == (0, True)
    assert there.left == {"other"}


def test_nothing_is_deleted_unless_the_answer_is_yes(there: There, home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    there.has("a", home, "uid-1")
    for answer, code, left in (("", 130, {"a"}), ("n\n", 130, {"a"}), ("y\n", 0, set())):
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        done, told = there.orphans("--home", home, "--delete")
        assert (done, there.left) == (code, left)
        assert f"Delete these 3 object(s) of 1 job(s) of home {home}?" in told


def test_a_home_that_does_not_answer_is_no_home_that_is_gone(there: There, home: str) -> None:
    there.has("a", home, "uid-1")
    code, told = there.orphans("--home", home, "--home-context", "nowhere", "--delete", "--yes")
    assert (code, "nowhere" in told) == (2, True)
    assert there.left == {"a"}


def test_what_may_not_be_deleted_is_named_and_the_rest_is_deleted(there: There, home: str, server: ApiServer) -> None:
    there.has("a", home, "uid-1")
    where = f"--namespace={there.name}"
    resources = "--resource=statefulsets,secrets,configmaps,services,networkpolicies"
    server.kubectl("create", "role", "look", "--verb=list", resources, where)
    server.kubectl("create", "role", "tidy", "--verb=delete", "--resource=statefulsets,configmaps", where)
    for role in ("look", "tidy"):
        server.bind(role, "dave", there.name)
    flags = ["--namespace", there.name, "--home", home, "--delete", "--yes"]
    done = there.as_user(server.kubeconfig_for("dave"), *flags)
    assert done.code == 1
    assert done.out.endswith("2 of 3 object(s) deleted\n")
    claims, line = done.err.splitlines()
    assert claims.startswith("diloco: claims are not listed: ")
    assert line.startswith(f"diloco: Secret {there.name}/a: delete secrets ")
