"""What networks do to one learner of a real job: its link is reset, falls silent, turns long or thin.

The learner's process connects through a relay on loopback, with TLS from end to end. It never restarts: every fault
ends with the same process training again. The other learner notices nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from diloco.local.certificates import learner_flags
from diloco.local.directory import RunDirectory
from diloco.spec.status.syncer import SyncerStatus
from tests.support.faulty_link import FaultyLink, Way
from tests.support.learner_process import LearnerProcess
from tests.support.local_run import GENTLE, GENTLE_SPEED, LEARNERS, SYNC, LocalRun, of, untouched, write_job

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

VICTIM, WITNESS = LEARNERS
LEASE_SECONDS = 4
LONG_ROUND_TRIP_SECONDS = 0.1
THIN_BYTES_PER_SECOND = 30_000
"""A fragment's outer gradient takes a second, the whole model several leases: bulk is always waiting."""
LEASES = 6
MORE_TOKENS = 50 * 8 * 32
"""Of 50 steps: more than can be under way."""


@dataclass
class Scene:
    """A job of which one learner is behind a relay."""

    job: LocalRun
    link: FaultyLink
    process: LearnerProcess

    def both_train(self) -> SyncerStatus:
        return self.job.all_train()

    def is_missed(self) -> SyncerStatus:
        """Wait until the learner behind the relay is lost, and the other one has gone on since."""
        gone = self.job.wait_for(lambda status: of(status, VICTIM).state == "Absent")
        return self.job.trains_on(WITNESS, of(gone, WITNESS).steps)

    def is_merged_on(self, since: SyncerStatus) -> SyncerStatus:
        """Wait until so much more of the learner's work was merged that it was done since."""
        tokens = of(since, VICTIM).merged_tokens + MORE_TOKENS
        return self.job.wait_for(lambda status: of(status, VICTIM).merged_tokens > tokens)

    def recovers(self, before: SyncerStatus) -> None:
        """Check that the same process trains and is merged again, and that the other one noticed nothing."""
        after = self.is_merged_on(self.both_train())
        assert self.process.runs
        assert of(after, VICTIM).restarts == of(before, VICTIM).restarts
        assert of(after, VICTIM).steps >= of(before, VICTIM).steps
        untouched(before, after, WITNESS)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("network")
    made = write_job(
        folder,
        training={"batchSize": 8, "checkpointEverySteps": 1000},
        sync=SYNC | {"leaseSeconds": LEASE_SECONDS, "maxStalenessSteps": 100_000},
    )
    with LocalRun(made, *GENTLE) as job:
        before = job.all_train()
        flags = learner_flags(RunDirectory(job.output), VICTIM)
        with (
            FaultyLink(job.endpoint["sync"]) as link,
            # It takes the place of the learner that the run started.
            LearnerProcess(folder, link.address, *flags, "--speed", GENTLE_SPEED, learner=VICTIM, job=made) as process,
        ):
            job.wait_for(lambda status: of(status, VICTIM).restarts > of(before, VICTIM).restarts)
            yield Scene(job, link, process)


@pytest.fixture(autouse=True)
def healed(scene: Scene) -> Iterator[None]:
    yield
    scene.link.heal()


@pytest.mark.core
def test_a_link_that_resets_its_connections_is_used_again(scene: Scene) -> None:
    before = scene.both_train()
    scene.link.reset()
    scene.job.wait_for(lambda status: of(status, VICTIM).incarnation > of(before, VICTIM).incarnation)
    scene.recovers(before)


@pytest.mark.core
def test_a_link_that_falls_silent_costs_only_its_learner(scene: Scene) -> None:
    before = scene.both_train()
    scene.link.silence(Way.UP, Way.DOWN)
    scene.is_missed()
    scene.link.heal()
    scene.recovers(before)


def test_a_link_that_carries_nothing_to_the_syncer(scene: Scene) -> None:
    before = scene.both_train()
    scene.link.silence(Way.UP)
    scene.is_missed()
    scene.link.heal()
    scene.recovers(before)


def test_a_link_that_carries_nothing_to_the_learner(scene: Scene) -> None:
    before = scene.both_train()
    scene.link.silence(Way.DOWN)
    # What it says still arrives, but it trains on without what others do, and both sides end what is not acknowledged.
    scene.job.wait_for(lambda status: of(status, VICTIM).versions_behind > 0)
    scene.job.trains_on(WITNESS, of(before, WITNESS).steps, steps=50)
    scene.link.heal()
    scene.recovers(before)


def test_a_link_that_turns_long_keeps_its_session(scene: Scene) -> None:
    before = scene.both_train()
    scene.link.delay(LONG_ROUND_TRIP_SECONDS / 2)
    after = scene.is_merged_on(scene.both_train())
    untouched(before, after, VICTIM, WITNESS)


def test_a_link_that_turns_thin_carries_control_beside_bulk(scene: Scene) -> None:
    before = scene.both_train()
    scene.link.limit(THIN_BYTES_PER_SECOND)
    over = before.elapsed_seconds + LEASES * LEASE_SECONDS
    after = scene.job.wait_for(lambda status: status.elapsed_seconds > over)
    assert of(after, VICTIM).versions_behind > 0
    # Its reports are not stuck behind its fragments.
    assert (of(after, VICTIM).last_heard_seconds or 0.0) < LEASE_SECONDS
    untouched(before, after, VICTIM, WITNESS)
    scene.link.heal()
    scene.recovers(before)
