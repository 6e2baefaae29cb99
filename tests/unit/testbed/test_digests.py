"""A digest changes exactly if something that matters changes, and images of other code are older."""

import re
from pathlib import Path

import pytest

from testbed.kind.digests import contents, digest_of
from testbed.kind.project_images import INPUTS, REPOSITORY, others


def test_order_does_not_count_and_borders_do() -> None:
    assert digest_of({"a": b"1", "b": b"2"}) == digest_of({"b": b"2", "a": b"1"})
    different = [{"a": b"1", "b": b"2"}, {"a": b"12", "b": b""}, {"a": b"1b2"}, {"ab": b"12"}, {"a": b"2", "b": b"1"}]
    assert len({digest_of(parts) for parts in different}) == len(different)


def test_contents_are_sources_and_nothing_that_was_made_of_them(tmp_path: Path) -> None:
    for name in ("Dockerfile", "code/a.py", "code/b/c.txt", "code/__pycache__/a.pyc", "code/x.egg-info/PKG", "other/d"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    found = contents(tmp_path, ["Dockerfile", "code", "missing"])
    assert found == {name: name.encode() for name in ("Dockerfile", "code/a.py", "code/b/c.txt")}


@pytest.mark.parametrize("target", ["operator", "trainer"])
def test_what_the_dockerfile_copies_into_an_image_counts_for_its_tag(target: str) -> None:
    stage = (
        (REPOSITORY / "Dockerfile").read_text(encoding="utf-8").split(f" AS {target}-build\n")[1].split("\nFROM ")[0]
    )
    copied = [word for line in re.findall(r"^COPY (.*)$", stage, re.MULTILINE) for word in line.split()[:-1]]
    assert copied
    counted = INPUTS[target]
    assert [
        path for path in copied if not any(path == known or path.startswith(f"{known}/") for known in counted)
    ] == []


NAMES = ("localhost/diloco-operator:new", "localhost/diloco-trainer:new")


def test_only_the_projects_images_of_other_code_are_older() -> None:
    old = "localhost/diloco-trainer:old"
    not_ours = ["diloco-trainer:old", "localhost/diloco-trainer-mine:old", "sha256:0a1b", "registry.example/pause:3"]
    assert others(NAMES, [*NAMES, old, *not_ours]) == [old]
