import sys

import pytest

from testbed.kind import bed, steps
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


def test_run_brings_up_as_many_clusters_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[tuple[list[str], dict[str, int]]] = []

    def run(targets: list[str], names: dict[str, int]) -> int:
        wanted.append((targets, names))
        return 4

    monkeypatch.setattr(steps, "run", run)
    line = ["kind", "--name", "diloco-mine", "--clusters", "2", "--small", "1", "run", "clusters", "test-clusters"]
    monkeypatch.setattr(sys, "argv", line)
    assert main() == 4
    names = {"diloco-mine": 1, "diloco-mine-2": 1, "diloco-mine-3": 0}
    assert wanted == [(["clusters", "test-clusters"], names)]
