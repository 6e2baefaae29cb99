"""A member that reports a false loss of the final model, though one that could be true."""

from pathlib import Path

import pytest

from testbed.kind.waiting import wait_until
from tests.hostile.test_members import syncer_of, training
from tests.support.scripted_learner import ScriptedLearner

pytestmark = pytest.mark.processes


class Reports(ScriptedLearner):
    """A member that finds one loss, whatever the model."""

    loss = 3.0

    def evaluation_loss(self) -> float:
        return self.loss


@pytest.mark.parametrize("learners", [2, 3])
def test_a_false_final_loss_is_named_and_does_not_count(tmp_path: Path, learners: int) -> None:
    with syncer_of(tmp_path, quorum=learners, learners=learners) as target:
        members = [Reports(target.address, target.job, f"here/cpu/{index}") for index in range(learners)]
        for member in members[:-1]:
            member.step_seconds = 5.0
        liar = members[-1]  # the fastest, so it is asked first
        liar.loss = 1.5
        with training(*members):
            wait_until(lambda: all(member.finished is not None for member in members))
        status = target.syncer.status()
    assert status.eval_loss == 3.0
    finals = {one.learner: one.doubted for one in status.evaluations if one.final}
    assert not any(doubted for learner, doubted in finals.items() if learner != liar.learner)
    if learners == 2 or liar.learner in finals:  # two that agree ask no third
        assert finals[liar.learner]
        assert "learners disagree on the loss of the final model: " in status.phase_reason
        assert f"1.5 by {liar.learner}" in status.phase_reason
