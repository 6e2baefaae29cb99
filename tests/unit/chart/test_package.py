"""What a release packs, and the workflows that make one."""

import re
import tarfile
from pathlib import Path
from typing import Any

import package
import pytest
import yaml

from diloco import __version__
from tests.support.rendered_chart import helm_template

REPOSITORY = Path(__file__).parents[3]
WORKFLOWS = sorted(REPOSITORY.glob(".github/workflows/*.yml"))
DIGEST = "sha256:" + "1f" * 32


def images(helm: Path, into: Path) -> tuple[str, str]:
    """Of the operator, and of jobs that name none, in the packed chart with no value set."""
    (packed,) = into.glob("*.tgz")
    with tarfile.open(packed) as archive:
        archive.extractall(into, filter="data")
    deployment = helm_template(helm, {}, into / "diloco-operator").only("Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    environment = {one["name"]: one.get("value") for one in container["env"]}
    return container["image"], environment["DILOCO_TRAINER_IMAGE"]


@pytest.mark.parametrize(
    ("registry", "digests", "expected"),
    [
        (None, {}, (f"diloco-operator:{__version__}", f"diloco-trainer:{__version__}")),
        ("a.b:5000", {}, (f"a.b:5000/diloco-operator:{__version__}", f"a.b:5000/diloco-trainer:{__version__}")),
        ("a.b/c", {"trainer": DIGEST}, (f"a.b/c/diloco-operator:{__version__}", f"a.b/c/diloco-trainer@{DIGEST}")),
    ],
)
def test_a_packed_chart_names_its_images(
    helm: Path, tmp_path: Path, registry: str | None, digests: dict[str, str], expected: tuple[str, str]
) -> None:
    package.pack_chart(helm, tmp_path, registry, digests)
    assert images(helm, tmp_path) == expected


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--tag", "v0.0.9"], f"--tag: v0.0.9 is not the version in trainer/diloco/__init__.py; use v{__version__}"),
        (["--registry", "A.B"], "--registry: A.B is no place of images; use HOST or HOST/PATH in lower case"),
        (["--registry", "https://a.b"], "--registry: https://a.b is no place of images"),
        (["--operator-digest", DIGEST], f"--operator-digest: {DIGEST} is of an image in no registry"),
        (["--registry", "a.b", "--trainer-digest", "1f"], "--trainer-digest: 1f is no digest; use sha256: and"),
    ],
)
def test_a_wrong_flag_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], told: str
) -> None:
    assert package.main(["--into", str(tmp_path / "packed"), *flags]) == 1
    assert told in capsys.readouterr().err
    assert not (tmp_path / "packed").exists()


def steps() -> list[tuple[str, dict[str, Any]]]:
    found = [(path, yaml.safe_load(path.read_text(encoding="utf-8"))) for path in WORKFLOWS]
    return [
        (f"{path.name}: {name}", step)
        for path, workflow in found
        for name, job in workflow["jobs"].items()
        for step in job["steps"]
    ]


def test_workflows_make_targets_that_there_are() -> None:
    targets = set(
        re.findall(
            r"^([a-z0-9-]+)(?: [a-z0-9-]+)*:", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
        )
    )
    used = {target for _, step in steps() for target in re.findall(r"\bmake ([a-z0-9-]+)", step.get("run", ""))}
    assert {"test", "test-e2e", "package", "docs"} <= used <= targets


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_only_read_unless_a_job_says_more(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    # What is put into a shell's text could be its code: values come as variables.
    assert not [step for _, step in steps() if "${{" in step.get("run", "")]
