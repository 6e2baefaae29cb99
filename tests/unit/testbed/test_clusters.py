"""Clusters whose nodes were stopped with the engine, or that were half deleted, are made anew."""

from pathlib import Path

import pytest

from testbed.kind import clusters
from testbed.kind.cache import Cache, ClusterRecord, State
from testbed.kind.clusters import lacks, started_again
from testbed.kind.tools import Tools

MADE = "2026-11-29T16:03:11.123456789Z"


@pytest.mark.parametrize(("started", "again"), [("16:03:12.5Z", False), ("16:04:40Z", False), ("17:24:31.1Z", True)])
def test_a_container_that_runs_again_is_told_by_its_times(started: str, again: bool) -> None:
    assert started_again(MADE, f"2026-11-29T{started}") == again


def test_a_cluster_whose_deletion_was_ended_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*command: object, **_: object) -> str:
        if "delete" in command:
            raise KeyboardInterrupt
        return "diloco-test"

    monkeypatch.setattr(clusters, "run", killed)
    cache = Cache(tmp_path)
    cache.write(State(clusters={"diloco-test": ClusterRecord("1", complete=True)}))
    with pytest.raises(KeyboardInterrupt):
        clusters.delete(cache, Tools(Path("kind"), Path("helm")), "diloco-test")
    assert not cache.state.clusters["diloco-test"].complete


def test_a_disk_without_room_for_the_nodes_is_said_with_both_sizes() -> None:
    assert not lacks(30_000_000_000, 10_000_000_000)
    assert lacks(11_000_000_000, 10_000_000_000) == "12.1 GB, but 11.0 GB are free"
