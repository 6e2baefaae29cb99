import os

import pytest

from testbed.kind.commands import TEST_SESSION, CommandFailedError, pipe, run, succeeds


def test_a_failure_has_the_last_line() -> None:
    assert run("cat", stdin="words") == "words"
    with pytest.raises(CommandFailedError, match="status 3") as caught:
        run("sh", "-c", "echo first; echo why >&2; exit 3")
    assert caught.value.last_line == "why"
    assert not succeeds("/missing")


def test_a_program_that_does_not_end_is_a_failure() -> None:
    with pytest.raises(CommandFailedError, match="no end after"):
        run("sleep", "60", timeout_seconds=0.1)


def test_clusters_and_engines_may_outlive_a_test_session() -> None:
    assert TEST_SESSION in os.environ
    assert TEST_SESSION not in run("env")


@pytest.mark.parametrize(
    ("source", "sink", "said"),
    [("echo lost >&2; exit 1", "cat >/dev/null", "lost"), ("echo fine", "cat; echo full >&2; exit 1", "full")],
    ids=["source", "sink"],
)
def test_both_ends_of_a_pipe_must_end_well(source: str, sink: str, said: str) -> None:
    pipe(("echo", "fine"), ("grep", "-q", "fine"))
    with pytest.raises(CommandFailedError, match=said):
        pipe(("sh", "-c", source), ("sh", "-c", sink))
