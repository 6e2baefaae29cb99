"""Encoded updates and posted pulls between a real syncer process and learners scripted over the real wire."""

import contextlib
import queue
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from diloco.runtime.process.exits import EXIT_OK
from diloco.wire.messages import FragmentReady, FragmentWanted, PullHeader, Welcome
from tests.integration.two_learners import LEARNERS, learner, train_to_the_end
from tests.support.scripted_learner import WAIT_SECONDS, ScriptedLearner
from tests.support.syncer_process import Serve, SmallJob, SyncerProcess, replayed, serving

pytestmark = pytest.mark.processes


def test_learners_with_and_without_updates_hold_the_same_bits_and_replay(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, downlink="Int8", quorum=2)
    with serving(job, tmp_path / "s", "--record", "--exit-when-finished") as syncer:
        knows, does_not = train_to_the_end(job, syncer, updated=LEARNERS[0])
        assert syncer.exit_code() == EXIT_OK, syncer.log
    updates = [header for header in knows.headers if header.codec]
    assert {(header.codec, header.version - header.base_version) for header in updates} == {("Int8", 1)}
    assert len(updates) > 10
    assert not any(header.codec for header in does_not.headers)
    for fragment, values in knows.fragments.items():
        if knows.versions[fragment] == does_not.versions[fragment]:
            assert torch.equal(values, does_not.fragments[fragment])
    report = replayed(tmp_path / "s")
    assert report.epochs[0].merges == report.epochs[0].merges_redone > 10


def test_after_a_restart_each_fragment_is_sent_whole_once_then_as_updates(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, downlink="Int8", tokens=10_000_000, lease_seconds=5)
    with serving(job, tmp_path / "s", "--record") as syncer, learner(job, syncer, updates=True) as one:
        one.begin().train(lambda _: "a checkpoint is due" in syncer.log and len(one.merged) > 8)
        syncer.kill()
    with serving(job, tmp_path / "s", "--record") as syncer, learner(job, syncer, updates=True) as one:
        answer = one.join()
        assert isinstance(answer, Welcome)
        held = dict.fromkeys(answer.load)
        for fragment in answer.load:
            # A learner that claims a version whose bits it cannot have is sent the whole fragment.
            assert one.pull(fragment, 0, held_version=max(0, answer.versions[fragment] - 1)).codec == ""
        assert len(held) == 4
        one.begin().train(lambda this: len(this.merged) > 8)
        assert all(header.codec == "Int8" for header in one.headers[-8:])
        assert syncer.terminate() == EXIT_OK
    report = replayed(tmp_path / "s")
    assert all(epoch.merges == epoch.merges_redone > 0 for epoch in report.epochs)


def test_a_job_may_go_on_with_another_downlink(tmp_path: Path) -> None:
    for downlink in ("F32", "Int8", "BF16", "F32"):
        job = SmallJob(tmp_path, downlink=downlink, tokens=10_000_000)
        with serving(job, tmp_path / "s", "--record") as syncer:
            with learner(job, syncer, updates=True) as one:
                one.begin().train(lambda this: len(this.merged) > 8)
                assert one.headers[-1].codec == downlink.replace("F32", "")
            assert syncer.terminate() == EXIT_OK
    report = replayed(tmp_path / "s")
    assert all(epoch.merges == epoch.merges_redone > 0 for epoch in report.epochs)


class Posted:
    """A pull posted by a learner that has just answered a request."""

    def __init__(self, pool: ThreadPoolExecutor, one: ScriptedLearner, wanted: FragmentWanted) -> None:
        self._learner = one
        self.header: Future[PullHeader] = pool.submit(one.pull, wanted.fragment, wanted.version, posted=True)

    def served(self) -> PullHeader:
        return self.header.result(WAIT_SECONDS)


def waiting(syncer: SyncerProcess, pulls: int) -> None:
    """Wait until this many pulls wait at the syncer."""
    polled = threading.Event()
    while f"diloco_posted_pulls {pulls:.1f}" not in syncer.page("/metrics"):
        polled.wait(0.01)


def test_a_posted_pull_is_served_without_a_further_request(serve: Serve) -> None:
    job, syncer = serve(downlink="Int8", quorum=2, tokens=10_000_000)
    with (
        ThreadPoolExecutor(4) as pool,
        learner(job, syncer, updates=True) as one,
        learner(job, syncer, LEARNERS[1]) as two,
    ):
        one.begin()
        two.begin()
        wanted = asked(one, two)
        posted = Posted(pool, one, wanted)
        assert one.push(wanted).accepted
        waiting(syncer, 1)
        theirs = Posted(pool, two, wanted)
        waiting(syncer, 2)
        assert two.push(asked(two, one, wanted.fragment)).accepted
        header = posted.served()
        assert (header.version, header.codec) == (wanted.version, "Int8")
        assert (theirs.served().version, theirs.served().codec) == (wanted.version, "")
        assert torch.equal(one.fragments[wanted.fragment], two.fragments[wanted.fragment])
        waiting(syncer, 0)
        # The notice comes all the same: it says whether the work was merged.
        while not isinstance(message := one.next(), FragmentReady):
            assert message is not None
        assert (message.fragment, message.version, message.merged) == (wanted.fragment, wanted.version, True)


def asked(one: ScriptedLearner, other: ScriptedLearner, fragment: int | None = None) -> FragmentWanted:
    """The request that the first gets (for this fragment), while both make steps."""
    while True:
        one.step()
        other.step()
        with contextlib.suppress(queue.Empty):
            message = one.next(0.05)
            assert message is not None
            if isinstance(message, FragmentWanted) and fragment in (None, message.fragment):
                return message
