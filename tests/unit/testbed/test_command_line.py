"""`python -m testbed.kind` acts on the named cluster, and on no other."""

import sys

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
