"""``diloco render``: the same objects, readable, without secrets; its whole output is kept in golden files."""

import json
from pathlib import Path

import pytest
import yaml

from diloco.cli.main import execute
from diloco.cli.manifests.render import IN_CLUSTER
from diloco.spec import load_job
from diloco_operator import names
from diloco_operator.manifests import Inputs, Remote, Scale, all_children, choose_images
from tests.support.golden import assert_golden
from tests.support.made_objects import ALL_FIELDS, FAR_REGIONS, OPTIONS, TWO_REGIONS, UID, live, placeholders

IMAGE = "registry.example/diloco:1"


def rendered(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert execute(["render", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("manifest", [TWO_REGIONS, ALL_FIELDS, FAR_REGIONS], ids=lambda path: path.parent.name)
def test_what_is_rendered_is_what_it_was(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert_golden(rendered(capsys, str(manifest), "--image", IMAGE), f"{manifest.parent.name}/rendered.yaml")


def test_json_is_one_list_of_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(rendered(capsys, str(TWO_REGIONS), "--image", IMAGE, "--output", "json"))
    assert (found["apiVersion"], found["kind"]) == ("v1", "List")
    assert found["items"] == list(yaml.safe_load_all(rendered(capsys, str(TWO_REGIONS), "--image", IMAGE)))


@pytest.mark.parametrize("cluster", ["home", "west", "west/kubeconfig", "home/second.yaml"])
def test_one_cluster_alone_is_part_of_the_whole(cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    whole = rendered(capsys, str(FAR_REGIONS), "--image", IMAGE)
    part = rendered(capsys, str(FAR_REGIONS), "--image", IMAGE, "--cluster", cluster)
    assert part in whole
    assert part.count("# What the operator applies ") == 1
    namespaces = {one["metadata"].get("namespace") for one in yaml.safe_load_all(part)}
    assert namespaces == ({"training"} if cluster == "home" else {None})


def test_json_names_the_cluster_of_each_object_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    flags = (str(FAR_REGIONS), "--image", IMAGE, "--output", "json")
    whole = json.loads(rendered(capsys, *flags))["items"]
    by_cluster: dict[str, list[str]] = {}
    for one in whole:
        where = one["metadata"].get("annotations", {}).get(IN_CLUSTER, "home")
        by_cluster.setdefault(where, []).append(one["metadata"]["name"])
    assert list(by_cluster) == ["home", "west", "home/second.yaml"]
    for where, there in by_cluster.items():
        alone = json.loads(rendered(capsys, *flags, "--cluster", where))["items"]
        assert [one["metadata"]["name"] for one in alone] == there
        assert not any(IN_CLUSTER in one["metadata"].get("annotations", {}) for one in alone)


@pytest.mark.parametrize("cluster", ["home", "west", "home/second.yaml"])
def test_what_is_rendered_is_what_the_operator_makes(cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    # Of an owner's uid nothing is shown at home.
    job = load_job(FAR_REGIONS) if cluster == "home" else live(load_job(FAR_REGIONS))
    remotes = dict.fromkeys(("west", "home/second.yaml"), Remote("there", "ID-OF-HOME", "syncer.example.com:443"))
    scale = Scale({key: pool.learners for key, pool in names.pools(job.spec).items()}, 1)
    wanted = all_children(job, OPTIONS, Inputs(choose_images(job.spec, IMAGE), scale, placeholders(job), remotes))
    text = rendered(capsys, str(FAR_REGIONS), "--image", IMAGE, "--cluster", cluster).replace("UID-OF-JOB", UID)
    shown = [one for one in yaml.safe_load_all(text) if one["kind"] != "Secret"]
    found = [{**one, "metadata": {"namespace": "there", **one["metadata"]}} for one in shown]
    where = "" if cluster == "home" else cluster
    assert found == [one.body for one in wanted if one.cluster == where and one.body["kind"] != "Secret"]


def test_the_namespace_reaches_every_object_and_every_name_in_them(capsys: pytest.CaptureFixture[str]) -> None:
    text = rendered(capsys, str(TWO_REGIONS), "--image", IMAGE, "--namespace", "research")
    assert {one["metadata"]["namespace"] for one in yaml.safe_load_all(text)} == {"research"}
    assert "--syncer=two-regions-syncer.research.svc:29400" in text


def test_a_suspended_job_is_rendered_asleep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(TWO_REGIONS.read_text().replace("spec:\n", "spec:\n  suspend: true\n", 1))
    found = yaml.safe_load_all(rendered(capsys, str(path), "--image", IMAGE))
    assert [one["spec"]["replicas"] for one in found if "replicas" in one.get("spec", {})] == [0, 0, 0]


@pytest.mark.parametrize(
    ("change", "arguments", "told"),
    [
        (("", ""), [], "spec.image: is missing, and so is the image of pool us-east/new"),
        (
            ("", ""),
            ["--image", IMAGE, "--namespace", "No"],
            "--namespace: No is not a namespace; use a name of lower-case letters",
        ),
        (
            ("{name: OMP_NUM_THREADS,", "{name: HOME,"),
            ["--image", IMAGE],
            "{path}:{line}: spec.regions[0].pools[0].env[0].name: HOME is set by the operator",
        ),
        (
            ("- name: us-east\n", "- name: us-east\n    cluster: {kubeconfigSecretRef: {name: east}}\n"),
            ["--image", IMAGE, "--cluster", "west"],
            "--cluster: no region is in west; use home or east",
        ),
    ],
    ids=["no image", "namespace", "a variable of ours", "another cluster"],
)
def test_what_cannot_be_rendered_is_one_line(
    change: tuple[str, str], arguments: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.yaml"
    text = TWO_REGIONS.read_text().replace(*change, 1)
    if "cluster" in change[1]:
        exposed = "  syncer:\n    expose: {type: NodePort, host: 203.0.113.7}\n"
        text = text.replace("  regions:\n", f"{exposed}  regions:\n", 1)
    path.write_text(text)
    line = text.partition(change[1].splitlines()[-1])[0].count("\n") + 1 if change[1] else 0
    assert execute(["render", str(path), *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"diloco: {told.format(path=path, line=line)}")
    assert len(captured.err.splitlines()) == 1
    assert captured.out == ""
