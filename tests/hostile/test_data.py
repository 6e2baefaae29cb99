"""Learners that say something false of the data that all share."""

from pathlib import Path
from typing import Any

import pytest

from diloco.wire.errors import RefusedError, UnavailableError
from diloco.wire.messages import Welcome
from tests.support.scripted_learner import WAIT_SECONDS, ScriptedLearner
from tests.support.syncer_process import SmallJob, SyncerProcess

pytestmark = pytest.mark.processes

FALSE: dict[str, Any] = {"sequences": 7}
TRUE: dict[str, Any] = {"sequences": 10_000, "data_digest": "of the true data"}


def test_one_join_with_false_data_locks_nobody_out(tmp_path: Path) -> None:
    job, state = SmallJob(tmp_path, learners=3, quorum=2), tmp_path / "state"
    with SyncerProcess(job, state) as syncer:
        syncer.serving()
        liar, one, other = (ScriptedLearner(syncer.address, job, f"here/cpu/{index}") for index in range(3))
        with liar, one, other:
            assert isinstance(liar.join(**FALSE), Welcome)
            with pytest.raises(UnavailableError, match="that of here/cpu/0 has 7 training sequences"):
                one.join(**TRUE)
            assert isinstance(other.join(**TRUE), Welcome)
            assert liar.over.wait(WAIT_SECONDS)
            assert isinstance(liar.broken, RefusedError)
            assert isinstance(one.join(**TRUE), Welcome)
            with pytest.raises(RefusedError, match="has 7 training sequences, that of here/cpu/1 and here/cpu/2 has"):
                liar.join(**FALSE)
            assert syncer.status().data.sequences == TRUE["sequences"]
        assert syncer.terminate() == 0
        assert "Traceback" not in syncer.log


def test_false_data_does_not_outlast_the_session_or_the_syncer(tmp_path: Path) -> None:
    job, state = SmallJob(tmp_path, learners=3, quorum=2), tmp_path / "state"
    with SyncerProcess(job, state) as syncer:
        syncer.serving()
        with ScriptedLearner(syncer.address, job, "here/cpu/0") as liar:
            assert isinstance(liar.join(**FALSE), Welcome)
            syncer.kill()
    with SyncerProcess(job, state) as syncer:
        syncer.serving()
        with ScriptedLearner(syncer.address, job, "here/cpu/0") as liar:
            assert isinstance(liar.join(**FALSE), Welcome)
            liar.hang_up()
        with ScriptedLearner(syncer.address, job, "here/cpu/1") as honest:
            assert isinstance(honest.join(**TRUE), Welcome)
        assert syncer.terminate() == 0
        assert "Traceback" not in syncer.log
