"""A real learner process that is sent updates and posts its pulls, against a syncer that the test drives by hand."""

import json
from pathlib import Path

import pytest
import torch

from diloco.wire.messages import Applied, Finished, PullRequest, PushHeader, Ready, StepReport
from diloco.wire.server.server import ServerOptions
from tests.support.learner_process import LearnerProcess, make_job
from tests.support.scripted_syncer import ScriptedSyncer
from tests.support.wire_syncer import RunningServer

pytestmark = pytest.mark.processes

INT8 = {"fragments": 6, "interval": 6, "downlink": "Int8", "compression": "None"}


def scripted(folder: Path) -> ScriptedSyncer:
    return ScriptedSyncer(make_job(folder, sync=INT8))


def moved(syncer: ScriptedSyncer, fragment: int) -> torch.Tensor:
    """A fragment as a merge may change it."""
    values = syncer.fragments[fragment]
    return values + 0.01 * torch.randn(values.numel(), generator=torch.Generator().manual_seed(fragment))


def activity(learner: LearnerProcess) -> dict[str, int]:
    plain: dict[str, int] = json.loads((learner.directory / "activity.json").read_text())
    return plain


def applied(syncer: ScriptedSyncer, fragment: int, version: int) -> None:
    """Wait until the learner trains on it."""
    syncer.wait_for(Applied, lambda said: (said.fragment, said.version) == (fragment, version))


def pulled(syncer: ScriptedSyncer, fragment: int) -> list[PullRequest]:
    return [request for request in syncer.pulls if request.fragment == fragment]


def test_an_update_that_makes_something_else_is_not_trained_on(tmp_path: Path) -> None:
    syncer = scripted(tmp_path)
    with RunningServer(syncer) as server, LearnerProcess(tmp_path, server.address) as learner:
        syncer.wait_for(StepReport)
        syncer.publish(2, moved(syncer, 2), lies=True)
        applied(syncer, 2, 1)
        assert [request.held_version for request in pulled(syncer, 2)] == [None, 0, None]
        # It goes on with the bits of the whole fragment: the next update comes out right.
        syncer.publish(2, moved(syncer, 2))
        applied(syncer, 2, 2)
        assert pulled(syncer, 2)[-1].held_version == 1
        syncer.end_session(Finished(complete=True, reason="enough"))
        assert learner.wait() == 0
        assert "fragment 2 from version 0 to 1 does not give the syncer's values" in learner.log
        assert (activity(learner)["updates"], activity(learner)["updates_wrong"]) == (2, 1)


def test_it_posts_its_pull_with_its_answer_and_needs_no_notice(tmp_path: Path) -> None:
    syncer = scripted(tmp_path)
    with RunningServer(syncer) as server, LearnerProcess(tmp_path, server.address) as learner:
        syncer.wait_for(StepReport)
        syncer.ask(0, version=1)
        syncer.wait_for(PushHeader)
        syncer.wait_for_pull(lambda pull: pull.posted)
        # Loading and other pulls go on while it waits.
        syncer.publish(1, moved(syncer, 1))
        applied(syncer, 1, 1)
        assert [(request.posted, request.held_version) for request in pulled(syncer, 0)[1:]] == [(True, 0)]
        syncer.publish(0, moved(syncer, 0))
        applied(syncer, 0, 1)
        assert len(pulled(syncer, 0)) == 2
        syncer.end_session(Finished(complete=True, reason="enough"))
        assert learner.wait() == 0
        assert (activity(learner)["pulls_posted"], activity(learner)["updates"]) == (1, 2)


def test_a_restart_of_the_syncer_discards_the_pulls_posted_before_it(tmp_path: Path) -> None:
    syncer = scripted(tmp_path)
    with RunningServer(syncer) as server:
        learner = LearnerProcess(tmp_path, server.address).__enter__()
        syncer.wait_for(StepReport)
        syncer.ask(0, version=1)
        syncer.wait_for(PushHeader)
        syncer.wait_for_pull(lambda pull: pull.posted)
    try:
        restarted = ScriptedSyncer(make_job(tmp_path, sync=INT8), epoch="2")
        with RunningServer(restarted, ServerOptions(server.address)):
            restarted.wait_for(Ready)
            assert {request.held_version for request in restarted.pulls} == {None}
            assert not any(request.posted for request in restarted.pulls)
            restarted.ask(0, version=1)
            restarted.wait_for(PushHeader)
            restarted.wait_for_pull(lambda pull: pull.posted)
            restarted.publish(0, moved(restarted, 0))
            applied(restarted, 0, 1)
            assert pulled(restarted, 0)[-1].held_version == 0
            restarted.end_session(Finished(complete=True, reason="enough"))
            assert learner.wait() == 0
    finally:
        learner.__exit__()
