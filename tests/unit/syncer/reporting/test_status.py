"""The contract of ``/status``: what readers of this version make of one that an older syncer wrote."""

import pytest
from pydantic import ValidationError

from diloco.spec.syncer_status import EvaluationStatus, LearnerStatus, SyncerStatus
from tests.support.status_of_a_job import STATUS, learner_status


def test_a_status_of_an_older_syncer_claims_nothing_that_it_does_not_say() -> None:
    plain = STATUS.model_dump()
    later = ("inner_steps", "trained_tokens", "time_seconds", "model_exported", "quorum", "quorum_wanted", "links")
    for name in later:
        del plain[name]
    read = SyncerStatus.model_validate(plain)
    assert [getattr(read, name) for name in later] == [0, 0, {}, False, 0, 0, None]


def test_a_learner_of_an_older_syncer_is_left_out_of_nothing() -> None:
    plain = learner_status(0).model_dump()
    later = ("time_seconds", "left_out", "left_out_reason", "left_out_now")
    for name in later:
        del plain[name]
    read = LearnerStatus.model_validate(plain)
    assert [getattr(read, name) for name in later] == [{}, 0, "", ""]


def test_an_evaluation_of_an_older_syncer_is_not_in_doubt() -> None:
    assert not EvaluationStatus(tokens=1, loss=2.0, seconds=3.0, final=False).doubted


def test_whoever_reads_a_status_cannot_change_it() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        STATUS.epoch = 9  # type: ignore[misc]
