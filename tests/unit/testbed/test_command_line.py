"""`python -m testbed.kind` acts on the named cluster, and on no other."""

import sys
from pathlib import Path

import pytest

from testbed.kind import bed
from testbed.kind.__main__ import main


@pytest.mark.parametrize(("flags", "taken_down"), [(["--name", "diloco-mine"], "diloco-mine"), ([], None)])
def test_down_is_for_the_named_cluster_and_without_a_name_for_all(
    monkeypatch: pytest.MonkeyPatch, flags: list[str], taken_down: str | None
) -> None:
    names: list[str | None] = []
    monkeypatch.setattr(bed, "down", names.append)
    # The cluster that tests use does not determine which one is deleted.
    monkeypatch.setenv("DILOCO_KIND_CLUSTER", "diloco-other")
    monkeypatch.setattr(sys, "argv", ["kind", "down", *flags])
    assert main() == 0
    assert names == [taken_down]


def test_run_brings_up_as_many_clusters_as_asked_and_ends_their_use(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    up: dict[str, int] = {}
    ended: list[str] = []

    class Brought:
        def images(self) -> None:
            """Nothing to build."""

    def bring_up(name: str, workers: int) -> Brought:
        up[name] = workers
        return Brought()

    monkeypatch.setattr(bed, "up", bring_up)
    monkeypatch.setattr(bed, "end_of_use", ended.append)
    marks = [tmp_path / "before", tmp_path / "after"]
    line = [
        "kind",
        "--name",
        "diloco-mine",
        "--clusters",
        "2",
        "--small",
        "1",
        "--meanwhile",
        f"touch {marks[0]}",
        "run",
        "--",
        "touch",
    ]
    monkeypatch.setattr(sys, "argv", [*line, str(marks[1])])
    assert main() == 0
    assert all(mark.exists() for mark in marks)
    assert up == {"diloco-mine": 1, "diloco-mine-2": 1, "diloco-mine-3": 0}
    assert ended == list(up)
    monkeypatch.setattr(sys, "argv", ["kind", "--meanwhile", "false", "run", "--", "touch", str(tmp_path / "never")])
    assert main() == 1
    assert not (tmp_path / "never").exists()
