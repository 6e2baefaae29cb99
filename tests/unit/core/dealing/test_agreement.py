"""One learner's word fixes no job's data: two planned ones do, or the first merge."""

from diloco.core.dealing.agreement import REMEMBERED_TICKS, Agreement, Data, Known

RIGHT, WRONG = Data(10_000, "right"), Data(7, "wrong")
A, B, C, STRANGER = "r/p/0", "r/p/1", "r/p/2", "r/p/77"


class Job:
    """What a syncer does with an agreement."""

    def __init__(self, *planned: str, known: Known | None = None) -> None:
        self.agreement, self.known = Agreement(planned), known or Known()

    def join(self, learner: str, data: Data) -> str:
        """Whether it is let in, has to wait or is refused."""
        found = self.agreement.objection(learner, data, self.known)
        if found is None:
            self.known = self.agreement.begins(self.known, learner, data)
            return "in"
        return "waits" if found.may_change else "refused"

    def merge(self, *learners: str) -> None:
        self.known = self.agreement.merged(self.known, learners)


def test_the_data_of_the_first_is_dealt_at_once() -> None:
    job = Job(A, B, C)
    assert job.join(A, RIGHT) == "in"
    assert job.known == Known(RIGHT, A)


def test_two_learners_with_the_same_data_fix_it() -> None:
    job = Job(A, B, C)
    assert [job.join(A, RIGHT), job.join(B, RIGHT), job.join(C, WRONG)] == ["in", "in", "refused"]
    assert job.known == Known(RIGHT, f"{A} and {B}", fixed=True)


def test_one_wrong_learner_makes_way_for_two_that_agree() -> None:
    job = Job(A, B, C)
    assert [job.join(A, WRONG), job.join(B, RIGHT), job.join(C, RIGHT)] == ["in", "waits", "in"]
    assert job.known == Known(RIGHT, f"{B} and {C}", fixed=True)
    assert [job.join(B, RIGHT), job.join(A, WRONG)] == ["in", "refused"]


def test_data_that_no_learner_with_a_session_has_is_dropped() -> None:
    job = Job(A, B, C)
    job.join(A, WRONG)
    job.agreement.over(A)
    assert job.join(B, RIGHT) == "in"
    assert job.known == Known(RIGHT, B)


def test_data_that_was_not_fixed_is_dropped_after_a_restart() -> None:
    job = Job(A, B, C, known=Known(WRONG, A))
    assert [job.join(B, RIGHT), job.join(A, WRONG)] == ["in", "waits"]


def test_the_first_merge_fixes_the_data() -> None:
    job = Job(A, B, C)
    job.join(A, RIGHT)
    job.merge(A)
    assert [job.join(B, WRONG), job.join(C, WRONG)] == ["refused", "refused"]


def test_a_merge_fixes_no_data_while_another_learner_disagrees() -> None:
    job = Job(A, B, C)
    job.join(A, WRONG)
    assert job.join(B, RIGHT) == "waits"
    job.merge(A)
    assert not job.known.fixed
    assert job.join(C, RIGHT) == "in"


def test_learners_that_are_not_planned_decide_nothing() -> None:
    job = Job(A, B)
    assert job.join(STRANGER, WRONG) == "in"
    job.merge(STRANGER)
    assert job.join(A, RIGHT) == "in"
    assert job.join(STRANGER, WRONG) == "waits"
    assert job.known == Known(RIGHT, A)


def test_the_second_of_two_planned_learners_is_refused() -> None:
    job = Job(A, B)
    assert [job.join(A, RIGHT), job.join(B, WRONG)] == ["in", "refused"]


def test_who_waited_and_does_not_come_back_counts_no_more() -> None:
    job = Job(A, B, C)
    assert [job.join(A, WRONG), job.join(B, RIGHT)] == ["in", "waits"]
    for _ in range(REMEMBERED_TICKS):
        job.agreement.tick()
    assert job.join(C, RIGHT) == "waits"


def test_a_learner_back_with_other_data_does_not_object_to_itself() -> None:
    job = Job(A, B, C)
    assert [job.join(A, WRONG), job.join(A, RIGHT)] == ["in", "in"]
    assert job.known == Known(RIGHT, A)


def test_the_line_names_both_and_what_to_do() -> None:
    job = Job(A, B)
    job.join(A, RIGHT)
    found = job.agreement.objection(B, Data(10_000, "0123456789abcdef"), job.known)
    assert found is not None
    assert found.text == (
        "data: has 10000 training sequences (digest 0123456789ab), that of r/p/0 has 10000 training sequences (digest "
        "right); use the same data for all learners and after --resume, and another job for other data"
    )
