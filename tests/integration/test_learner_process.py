"""A real learner process against a syncer that the test drives by hand, over real gRPC."""

import json
import re
import urllib.request
from pathlib import Path

import pytest
import torch

from diloco.wire.messages import (
    Alive,
    Applied,
    EvaluationReport,
    EvaluationWanted,
    Finished,
    Join,
    Leave,
    Progress,
    PushHeader,
    Ready,
    Refused,
    StepReport,
)
from diloco.wire.server.server import ServerOptions
from tests.support.learner_process import LearnerProcess, make_job
from tests.support.scripted_syncer import ScriptedSyncer
from tests.support.wire_syncer import RunningServer

pytestmark = pytest.mark.processes


def test_it_joins_loads_trains_pushes_pulls_and_evaluates_until_the_end(tmp_path: Path) -> None:
    syncer = ScriptedSyncer(make_job(tmp_path))
    with RunningServer(syncer) as server, LearnerProcess(tmp_path, server.address) as learner:
        join = syncer.wait_for(Join)
        assert (join.learner, join.versions, join.steps) == ("here/cpu/0", (), 0)
        syncer.wait_for(Ready)
        syncer.wait_for(StepReport, lambda report: report.step >= 3)

        syncer.ask(0, version=1)
        push = syncer.wait_for(PushHeader)
        assert (push.fragment, push.version, push.base_version, push.attempt) == (0, 1, 0, 1)
        assert push.steps >= 3
        assert push.tokens == push.steps * 4 * 16
        assert syncer.payloads[0, 1, 1].abs().max() > 0

        syncer.publish(0, torch.zeros_like(syncer.fragments[0]))
        applied = syncer.wait_for(Applied, lambda applied: applied.version == 1)
        assert applied.fragment == 0

        mark = syncer.mark()
        syncer.wait_for(StepReport, after=mark)
        syncer.ask(0, version=2)
        again = syncer.wait_for(PushHeader, lambda header: header.version == 2)
        # Measured from the zeros that it received: what is there now is minus the outer gradient.
        assert again.base_version == 1
        assert again.steps < push.steps + (again.tokens // (4 * 16))

        syncer.send(EvaluationWanted(0, tuple(syncer.versions), final=False))
        report = syncer.wait_for(EvaluationReport)
        assert report.exact
        assert 0 < report.loss < 10

        syncer.end_session(Finished(complete=True, reason="enough"))
        assert learner.wait() == 0
        activity = json.loads((learner.directory / "activity.json").read_text())
        assert activity["ending"] == "Finished"
        assert 0 < activity["evaluating_fraction"] < 1
        assert 0 <= activity["checkpointing_fraction"] < 1
        assert activity["bytes_pushed"] == push.payload_bytes + again.payload_bytes
        assert "Traceback" not in learner.log


def test_the_final_evaluation_waits_for_exactly_the_versions_asked_for(tmp_path: Path) -> None:
    syncer = ScriptedSyncer(make_job(tmp_path))
    with RunningServer(syncer) as server, LearnerProcess(tmp_path, server.address) as learner:
        syncer.wait_for(StepReport)
        # Merged without a notice: the order itself says so.
        syncer.versions[2] += 1
        syncer.send(EvaluationWanted(7, tuple(syncer.versions), final=True))
        report = syncer.wait_for(EvaluationReport)
        assert (report.evaluation, report.exact) == (7, True)
        syncer.wait_for(Applied, lambda applied: (applied.fragment, applied.version) == (2, 1))
        syncer.end_session(Refused("Finished", "the job is over"))
        assert learner.wait() == 0


@pytest.mark.parametrize(("refusal", "flags"), [("Superseded", ()), ("GivenUp", ("--stay",))])
def test_a_learner_that_is_refused_ends_with_one_line(tmp_path: Path, refusal: str, flags: tuple[str, ...]) -> None:
    syncer = ScriptedSyncer(make_job(tmp_path))
    syncer.refusal = Refused(refusal, "it is not wanted here")
    with RunningServer(syncer) as server, LearnerProcess(tmp_path, server.address, *flags) as learner:
        assert learner.wait() == 3
        assert [line for line in learner.log.splitlines() if "error" in line] == learner.log.splitlines()[-1:]
        assert "it is not wanted here" in learner.log


def test_a_superseded_learner_ends_and_leaves_its_directory_to_the_other(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    syncer = ScriptedSyncer(job)
    with RunningServer(syncer) as server, LearnerProcess(tmp_path, server.address) as learner:
        syncer.wait_for(StepReport)
        syncer.end_session(Refused("Superseded", "another process has joined"))
        assert learner.wait() == 3
        assert not (learner.directory / "activity.json").exists()
        assert "Superseded" in learner.log


def test_it_trains_while_the_syncer_is_away_and_rejoins_with_its_versions(tmp_path: Path) -> None:
    syncer = ScriptedSyncer(make_job(tmp_path, sync={"fragments": 6, "interval": 6, "maxStalenessSteps": 1_000_000}))
    with RunningServer(syncer) as server:
        options = ServerOptions(server.address)
        learner = LearnerProcess(tmp_path, server.address).__enter__()
        first = syncer.wait_for(Join)
        syncer.wait_for(StepReport)
        syncer.publish(1)
        syncer.wait_for(Applied, lambda applied: applied.version == 1)
    try:
        steps = max(said.step for said in syncer.said if isinstance(said, StepReport))
        mark = syncer.mark()
        with RunningServer(syncer, options):
            back = syncer.wait_for(Join, after=mark)
            assert (back.instance, back.epoch, back.versions) == (first.instance, "1", (0, 1, 0, 0, 0, 0))
            syncer.wait_for(Ready, lambda ready: ready.incarnation == 2, after=mark)
            assert syncer.wait_for(StepReport, after=mark).step > steps

            mark = syncer.mark()
            syncer.end_session(Refused("LeaseExpired", "silent for 20.0 s"))
            again = syncer.wait_for(Join, after=mark)
            assert again.instance == first.instance
            syncer.wait_for(StepReport, lambda report: report.incarnation == 3, after=mark)

        # A restarted syncer counts from its checkpoint: versions held from before do not count.
        restarted = ScriptedSyncer(make_job(tmp_path), epoch="2")
        with RunningServer(restarted, options):
            join = restarted.wait_for(Join)
            assert (join.epoch, join.instance) == ("1", first.instance)
            restarted.wait_for(Ready)
            assert {said.fragment for said in restarted.said if isinstance(said, Applied)} == set(range(6))
            restarted.wait_for(StepReport, lambda report: report.step > back.steps)
            restarted.end_session(Finished(complete=True, reason="enough"))
            assert learner.wait() == 0
    finally:
        learner.__exit__()


def test_it_pauses_at_the_staleness_bound_and_resumes_by_itself(tmp_path: Path) -> None:
    job = make_job(tmp_path, sync={"fragments": 6, "interval": 6, "maxStalenessSteps": 8, "leaseSeconds": 1})
    syncer = ScriptedSyncer(job)
    with RunningServer(syncer) as server, LearnerProcess(tmp_path, server.address) as learner:
        syncer.wait_for(StepReport, lambda report: report.step == 8)
        mark = syncer.mark()
        syncer.wait_for(Alive, after=mark)
        # It answers while it is paused.
        syncer.ask(3, version=1)
        assert syncer.wait_for(PushHeader).steps == 8
        syncer.send(EvaluationWanted(0, tuple(syncer.versions), final=False))
        syncer.wait_for(EvaluationReport)
        assert max(said.step for said in syncer.said if isinstance(said, StepReport)) == 8

        for fragment in range(6):
            syncer.publish(fragment)
        # Reports of steps in close succession are sent as one.
        report = syncer.wait_for(StepReport, lambda report: report.step > 8)
        # Its account of time covers everything since the process started.
        spent = report.spent
        assert min(spent.training, spent.paused, spent.evaluating, spent.loading, spent.copying, spent.looking) > 0
        assert spent.skipped == 0
        swapped_in = [said.step for said in syncer.said if isinstance(said, Applied) and said.version == 1]
        assert swapped_in == [8] * 6
        syncer.wait_for(StepReport, lambda report: report.step == 16)
        syncer.end_session(Finished(complete=False, reason="enough"))
        assert learner.wait() == 0


@pytest.mark.core
def test_sigterm_hands_in_the_requested_fragments_and_a_restart_resumes(tmp_path: Path) -> None:
    syncer = ScriptedSyncer(make_job(tmp_path))
    with RunningServer(syncer) as server:
        with LearnerProcess(tmp_path, server.address, "--speed", "0.5") as learner:
            syncer.wait_for(StepReport, lambda report: report.step >= 3)
            for fragment in range(6):
                syncer.ask(fragment, version=1)
            syncer.wait_for(PushHeader)
            learner.terminate()
            assert learner.wait() == 0
        leave = syncer.wait_for(Leave)
        kinds = [type(said) for said in syncer.said]
        assert kinds.count(PushHeader) == 6
        assert kinds[-1] is Leave
        assert leave.reason == "SIGTERM"
        last = [said for said in syncer.said if isinstance(said, StepReport)][-1]

        make_job(tmp_path, learners=5)  # its pool was scaled meanwhile
        mark = syncer.mark()
        with LearnerProcess(tmp_path, server.address) as learner:
            join = syncer.wait_for(Join, after=mark)
            assert (join.steps, join.data_position, join.versions) == (last.step, last.data_position, ())
            assert syncer.wait_for(StepReport, after=mark).tokens == last.tokens + 4 * 16
            learner.terminate()
            assert learner.wait() == 0


MUON = {"type": "Muon", "learningRate": 3e-3, "warmupSteps": 4}


def test_killed_it_goes_on_with_muons_state_but_not_with_another_kind(tmp_path: Path) -> None:
    training = {"tokens": 100_000, "sequenceLength": 16, "batchSize": 4, "checkpointEverySteps": 2, "optimizer": MUON}
    syncer = ScriptedSyncer(make_job(tmp_path, training=training))
    with RunningServer(syncer) as server:
        with LearnerProcess(tmp_path, server.address) as learner:
            syncer.wait_for(StepReport, lambda report: report.step >= 2)
            learner.wait_for_file("checkpoints/0*/manifest.json")
        mark = syncer.mark()
        with LearnerProcess(tmp_path, server.address) as learner:
            join = syncer.wait_for(Join, after=mark)
            assert join.steps >= 2
            assert join.steps % 2 == 0
            learner.wait_for(f"continues from its own checkpoint of step {join.steps}")
            assert syncer.wait_for(StepReport, after=mark).step == join.steps + 1
        make_job(tmp_path, training=training | {"optimizer": {"type": "AdamW"}})
        mark = syncer.mark()
        with LearnerProcess(tmp_path, server.address) as learner:
            assert syncer.wait_for(StepReport, after=mark).step == 1
            told = r"it is of inner optimizer Muon on 18 matrices \(\w{12}\), this is inner optimizer AdamW\n"
            assert len(re.findall(told, learner.log)) == 1
            learner.terminate()
            assert learner.wait() == 0
        assert "Traceback" not in learner.log


def test_without_a_checkpoint_progress_and_position_come_from_the_syncer(tmp_path: Path) -> None:
    class Remembers(ScriptedSyncer):
        async def session(self, join, peer, inbound, send):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
            known = type(join)(join.job, join.learner, join.instance, join.layout_digest, steps=50, data_position=400)
            await super().session(known, peer, inbound, send)

    syncer = Remembers(make_job(tmp_path))
    syncer.progress = Progress(50_000, 100_000, 9)
    with RunningServer(syncer) as server, LearnerProcess(tmp_path, server.address) as learner:
        report = syncer.wait_for(StepReport)
        assert (report.step, report.data_position) == (51, 404)
        learner.terminate()
        assert learner.wait() == 0


def _page(address: str, path: str) -> tuple[int, str]:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=60) as answer:
        return answer.status, answer.read().decode()


def test_one_that_is_to_stay_serves_on_after_the_end_until_it_is_stopped(tmp_path: Path) -> None:
    syncer = ScriptedSyncer(make_job(tmp_path))
    with (
        RunningServer(syncer) as server,
        LearnerProcess(tmp_path, server.address, "--stay", "--http", "127.0.0.1:0") as learner,
    ):
        syncer.wait_for(StepReport)
        syncer.end_session(Finished(complete=True, reason="enough"))
        learner.wait_for("the job is over; waiting for SIGTERM")
        address = learner.http_address
        assert _page(address, "/readyz") == (200, "the job is over\n")
        assert _page(address, "/healthz") == (200, "ok\n")
        assert "diloco_learner_joined 0.0" in _page(address, "/metrics")[1]
        learner.terminate()
        assert learner.wait() == 0
        assert json.loads((learner.directory / "activity.json").read_text())["ending"] == "Finished"


def test_if_its_last_checkpoint_fails_the_learner_exits_with_an_error(tmp_path: Path) -> None:
    syncer = ScriptedSyncer(make_job(tmp_path))
    with RunningServer(syncer) as server, LearnerProcess(tmp_path, server.address) as learner:
        syncer.wait_for(StepReport)
        learner.limit_file_size(50_000)
        learner.terminate()
        assert learner.wait() == 1
        (line,) = [line for line in learner.log.splitlines() if " here/cpu/0 error: " in line]
        assert "no last checkpoint: cannot write the checkpoint in" in line


def test_text_that_becomes_shorter_ends_it_with_one_line_naming_the_file(tmp_path: Path) -> None:
    syncer = ScriptedSyncer(make_job(tmp_path))
    with RunningServer(syncer) as server, LearnerProcess(tmp_path, server.address) as learner:
        syncer.wait_for(StepReport)
        (tmp_path / "text.txt").write_text("cut")
        assert learner.wait() == 2
        (line,) = [line for line in learner.log.splitlines() if " here/cpu/0 error: " in line]
        assert f"data.text.path: {tmp_path / 'text.txt'} had" in line
        assert "Traceback" not in learner.log
