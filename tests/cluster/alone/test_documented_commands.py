"""The console blocks of README and examples, word for word: images are built, pushed, installed and upgraded.

And what `make package` packs: its chart is installed as a release's is, without a value.
"""

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diloco import __version__
from testbed.kind import local_registry
from testbed.kind.bed import Bed
from testbed.kind.clusters import Cluster
from testbed.kind.commands import Unavailable, run
from testbed.kind.project_images import REPOSITORY
from testbed.kind.waiting import wait_until
from tests.cluster.cluster_shell import ClusterShell, checkout, of_namespace
from tests.support.cluster_jobs import ClusterJob, apply, manifest
from tests.support.documented_commands import READMES, blocks, statements_to_run, walk

pytestmark = pytest.mark.timeout(1200)

LONG = [one for one in READMES if one != "README.md"]
OPERATOR = "diloco-system"
"""The operator's namespace in the documentation."""


@pytest.fixture(scope="module")
def registry(bed: Bed) -> Iterator[None]:
    try:
        with local_registry.running(bed.cache, bed.cluster.nodes):
            yield
    except Unavailable as why:
        pytest.skip(f"no registry: {why}")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The reader's copy of the repository, with texts to train on."""
    folder = checkout(tmp_path / "here")
    (folder / "my-texts").mkdir()
    (folder / "my-texts/text.md").write_text("All that a reader has to train on.\n" * 1000, encoding="utf-8")
    return folder


@pytest.fixture
def shell(bed: Bed, namespace: str, tmp_path: Path, here: Path) -> ClusterShell:
    return ClusterShell(bed, of_namespace(bed.cluster, namespace), tmp_path, here)


def running(cluster: Cluster, namespace: str, container: str) -> list[dict[str, Any]]:
    """The status of each container of this name that runs there, or has run, with the image that its pod asks for.

    Of an image that a node has under several names, the status has any.
    """
    found: list[dict[str, Any]] = []
    for pod in cluster.items("pods", namespace):
        asked = {one["name"]: one["image"] for one in pod["spec"]["containers"]}
        statuses = [one for one in pod["status"].get("containerStatuses", []) if one["name"] == container]
        begun = [one for one in statuses if "running" in one["state"] or one["restartCount"]]
        found += [one | {"image": asked[container]} for one in begun]
    return found


def version_of_operator(cluster: Cluster, image: str) -> str:
    """The version that the operator's code says, once the only operator runs in this image."""

    def runs() -> bool:
        return [one["image"] for one in running(cluster, OPERATOR, "operator") if one["ready"]] == [image]

    wait_until(runs, f"the operator runs in {image}")
    ask = ("/opt/diloco/bin/python3", "-c", "import diloco; print(diloco.__version__)")
    return cluster.kubectl("exec", "--namespace", OPERATOR, "deployment/diloco-operator", "--", *ask).strip()


@pytest.mark.usefixtures("registry", "nothing_installed")
@pytest.mark.parametrize("readme", ["README.md", *(pytest.param(one, marks=walk) for one in LONG)])
def test_what_a_readme_tells_works_and_an_upgrade_runs_its_build(
    cluster: Cluster, shell: ClusterShell, here: Path, namespace: str, readme: str
) -> None:
    told = statements_to_run((here / readme).read_text(encoding="utf-8"))
    shell.walk(told, READMES[readme])
    tag = shell.run("echo $TAG").strip()
    assert version_of_operator(cluster, f"registry.example/diloco-operator:{tag}") == __version__
    (syncer,) = wait_until(lambda: running(cluster, namespace, "syncer"), "the syncer runs")
    assert syncer["image"] == f"registry.example/diloco-trainer:{tag}"
    ClusterJob(cluster, namespace, READMES[readme]).delete()
    if readme == "README.md":
        upgrades(cluster, shell, here, told)


def upgrades(cluster: Cluster, shell: ClusterShell, here: Path, told: list[str]) -> None:
    """Change the code, build it as the README tells, and upgrade as the guide tells."""
    tag, build, _ = told[:3]
    operations = (here / "docs/how-to/operations.md").read_text(encoding="utf-8")
    (upgrade,) = (block for block in blocks(operations) if "helm upgrade" in block and "image.tag=$TAG" in block)
    with (here / "trainer/diloco/__init__.py").open("a", encoding="utf-8") as source:
        source.write('__version__ = "9.9.9"\n')
    for statement in (tag, build, upgrade):
        shell.run(statement)
    image = f"registry.example/diloco-operator:{shell.run('echo $TAG').strip()}"
    assert version_of_operator(cluster, image) == "9.9.9"


COMMIT, LEARNER = "1f" * 20, "here/cpu/0"


@pytest.mark.usefixtures("registry", "nothing_installed")
def test_the_packed_chart_needs_no_value_and_its_job_trains(
    cluster: Cluster, shell: ClusterShell, namespace: str, tmp_path: Path
) -> None:
    pushed = {}
    for image in ("operator", "trainer"):
        name = f"registry.example/team/diloco-{image}:{__version__}"
        shell.run(f"docker build --target {image} --build-arg COMMIT={COMMIT} --tag {name} .")
        shell.run(f"docker push {name}")
        pushed[image] = shell.run(f"docker inspect --format '{{{{index .RepoDigests 0}}}}' {name}").strip()
    digests = " ".join(f"--{image}-digest {name.partition('@')[2]}" for image, name in pushed.items())
    packed = tmp_path / "packed"
    options = f"--tag v{__version__} --registry registry.example/team {digests} --into {packed}"
    shell.run(f"make --directory {REPOSITORY} package PACKAGE='{options}'")
    (packed_python,) = packed.glob("*.whl")
    with zipfile.ZipFile(packed_python) as wheel:
        assert wheel.read("diloco/commit").decode().startswith(run("git", "rev-parse", "HEAD", cwd=REPOSITORY).strip())
    chart = f"{packed}/diloco-operator-{__version__}.tgz"
    shell.run(f"helm install diloco-operator {chart} --namespace {OPERATOR} --create-namespace --wait --timeout 180s")
    assert version_of_operator(cluster, pushed["operator"]) == __version__
    job = apply(cluster, namespace, manifest("packed"))
    assert job.merges(LEARNER, since=job.all_train(LEARNER)).version == f"{__version__} ({COMMIT})"
    assert {one["image"] for one in running(cluster, namespace, "learner")} == {pushed["trainer"]}
    job.delete()
