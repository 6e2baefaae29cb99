"""A hundred learners come back at once and load the model, while two others train: a real syncer, real sockets."""

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from diloco.syncer.peers.load_places import MOST_PLACES
from diloco.wire.errors import DeadlineError, RefusedError, UnavailableError
from diloco.wire.messages import PullHeader, Welcome
from tests.support.scripted_learner import ScriptedLearner
from tests.support.syncer_process import SmallJob, SyncerProcess

RETURNING = 100
MOST_GROWTH_BYTES = 400 << 20
"""Of the syncer, whose model has a few MiB: buffers of some 900 connections."""
LOOK_SECONDS = 0.5


class Returning(ScriptedLearner):
    """A learner that tries again, as a learner's process does, when it is told to wait or a call is turned away."""

    def pull(self, fragment: int, minimum_version: int, **changes: Any) -> PullHeader:
        while True:
            try:
                return super().pull(fragment, minimum_version, **changes)
            except RefusedError as error:
                if "try again" not in str(error):
                    raise

    def returns(self, over: threading.Event) -> None:
        """Get the model and say so."""
        while not over.is_set():
            # It says nothing while it loads, so on a busy machine its lease may end before it has all.
            with contextlib.suppress(UnavailableError, DeadlineError, RefusedError):
                self.begin()
                return

    def trains(self, over: threading.Event) -> None:
        """Train until ``over``."""
        while not over.is_set():
            # A pull of a version may come after the session has ended, which refuses it.
            with contextlib.suppress(UnavailableError, RefusedError):
                self.begin()
                self.train(lambda _: over.is_set())


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> SmallJob:
    learners = RETURNING + 2
    # Two of these train before the others come.
    changes = {"learners": learners, "lease_seconds": 60, "startup_seconds": 1}
    return SmallJob(tmp_path_factory.mktemp("surge"), preset="nano", tokens=10**9, **changes)


@pytest.fixture
def syncer(job: SmallJob, tmp_path: Path) -> Iterator[SyncerProcess]:
    with SyncerProcess(job, tmp_path / "state") as process:
        yield process.serving()


def test_a_hundred_that_return_get_the_model_and_nobody_stops(job: SmallJob, syncer: SyncerProcess) -> None:
    trained, over = threading.Event(), threading.Event()
    learners = [Returning(syncer.address, job, f"here/cpu/{index}") for index in range(RETURNING + 2)]
    trainers, returning = learners[:2], learners[2:]
    with contextlib.ExitStack() as ending, ThreadPoolExecutor(len(learners)) as threads:
        for learner in learners:
            ending.enter_context(learner)
        try:
            training = [threads.submit(learner.trains, trained) for learner in trainers]
            wait_for_merges(syncer, 4)
            memory = psutil.Process(syncer.pid).memory_info
            before, merged_before = memory().rss, syncer.status().syncer_step
            most = before
            loads = [threads.submit(learner.returns, over) for learner in returning]
            while not all(load.done() for load in loads):
                most = max(most, memory().rss)
                over.wait(LOOK_SECONDS)
            for load in loads:
                load.result()
            merged_after = syncer.status().syncer_step
            # Those that have returned are silent: the two still merge.
            wait_for_merges(syncer, merged_after + 4)
        finally:
            over.set()
            trained.set()
        for done in training:
            done.result()
    whole = list(range(len(job.layout.fragments)))
    assert [sorted(learner.fragments) for learner in returning] == [whole] * RETURNING
    assert merged_after > merged_before
    assert most - before < MOST_GROWTH_BYTES
    assert "Traceback" not in syncer.log


def wait_for_merges(syncer: SyncerProcess, merges: int) -> None:
    """Wait until so many merges are done; the test's time limit is the bound."""
    while syncer.status().syncer_step < merges:
        threading.Event().wait(0.1)


def test_those_that_stop_loading_half_way_keep_no_place(job: SmallJob, syncer: SyncerProcess) -> None:
    with contextlib.ExitStack() as ending:
        for index in range(MOST_PLACES):
            learner = ending.enter_context(ScriptedLearner(syncer.address, job, f"here/cpu/{index}"))
            assert isinstance(learner.join(), Welcome)
            learner.pull(0, 0)
        last = ending.enter_context(Returning(syncer.address, job, f"here/cpu/{MOST_PLACES}"))
        last.begin()
        assert sorted(last.fragments) == list(range(len(job.layout.fragments)))
