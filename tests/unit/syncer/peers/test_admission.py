"""Unplanned learners."""

from diloco.syncer.peers.admission import Admission


def test_a_pool_may_grow_before_the_manifest_says_so_but_not_without_end() -> None:
    admission = Admission(f"r/p/{index}" for index in range(100))
    for index in range(100, 200):
        assert admission.problem_with(f"r/p/{index}") is None
        admission.admitted(f"r/p/{index}")
    assert admission.problem_with("r/p/200") == (
        "cannot admit 'r/p/200': it is not in the manifest; at most 100 such learner(s) of r/p are admitted, as many as"
        " the manifest plans"
    )
    # Planned ones, and those that were in, come back.
    assert admission.problem_with("r/p/5") is None
    assert admission.problem_with("r/p/150") is None


def test_once_the_manifest_has_had_them_there_is_room_again() -> None:
    admission = Admission(["r/p/0"])
    admission.admitted("r/p/1")
    assert admission.problem_with("r/p/2") is not None
    admission.planned(["r/p/0", "r/p/1"])
    assert admission.problem_with("r/p/2") is None
    admission.planned(["r/p/0"])  # the pool shrinks again
    assert admission.problem_with("r/p/2") is None


def test_a_pool_takes_no_room_of_another() -> None:
    admission = Admission(["r/p/0", *(f"r/q/{index}" for index in range(9))])
    admission.admitted("r/p/1")
    assert admission.problem_with("r/p/2") is not None
    assert admission.problem_with("r/q/9") is None
    assert admission.problem_with("r/none/0") is not None


def test_those_that_wait_for_an_answer_count() -> None:
    admission = Admission(["r/p/0", "r/p/1"])
    assert admission.problem_with("r/p/99", ("r/p/0", "r/p/8", "r/q/9")) is None  # r/p/0 is planned
    assert admission.problem_with("r/p/99", ("r/p/8", "r/p/9")) is not None
