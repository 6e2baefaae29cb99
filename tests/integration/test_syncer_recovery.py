"""A real syncer process that is killed long after its checkpoint: what learners hold is in the model again."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from diloco.local.launch import free_ports
from diloco.spec.status.syncer import SyncerStatus
from diloco.syncer.disk.checkpoint import LoadedCheckpoint, load_checkpoint
from diloco.syncer.disk.checkpoint_names import checkpoint_names
from tests.integration.two_learners import LEARNERS
from tests.support.holding_learner import HoldingLearner
from tests.support.scripted_learner import WAIT_SECONDS
from tests.support.syncer_process import SmallJob, SyncerProcess, replayed

if TYPE_CHECKING:
    from diloco.wire.messages import Welcome

pytestmark = pytest.mark.processes


class Scene:
    """A syncer at one address, and learners that know it."""

    def __init__(self, folder: Path, stack: ExitStack, **changes: object) -> None:
        self.job = SmallJob(folder, **{"checkpoint_every": 3600, "tokens": 10_000_000, "lease_seconds": 5} | changes)
        self.directory, self._stack = folder / "s", stack
        self._address = f"127.0.0.1:{free_ports(1)[0]}"

    def syncer(self, *flags: str, before: tuple[str, ...] = ()) -> SyncerProcess:
        process = SyncerProcess(self.job, self.directory, "--listen", self._address, *flags, before=before)
        return self._stack.enter_context(process)

    def learner(self, name: str = LEARNERS[0]) -> HoldingLearner:
        return self._stack.enter_context(HoldingLearner(self._address, self.job, name))

    def newest(self) -> LoadedCheckpoint:
        folder = self.directory / "checkpoints"
        return load_checkpoint(folder, checkpoint_names(folder)[-1], self.job.layout, self.job.name)

    def replays(self) -> None:
        replayed(self.directory)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Callable[..., Scene]]:
    with ExitStack() as stack:
        yield lambda **changes: Scene(tmp_path, stack, **changes)


def settled(syncer: SyncerProcess, *learners: HoldingLearner) -> SyncerStatus:
    """Let learners pull until each holds every version that was made; returns the status then."""
    until = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < until:
        status = syncer.status()
        if all(sum(one.versions) == status.syncer_step for one in learners):
            return status
        for one in learners:
            while not one._inbox.empty() and (message := one.next()) is not None:
                one.obey(message)
        time.sleep(0.05)
    raise AssertionError("a learner does not hold the newest versions")


def test_what_one_learner_holds_is_in_the_model_again(scene: Callable[..., Scene]) -> None:
    here = scene()
    first, one = here.syncer("--record").serving(), here.learner()
    one.begin().train(lambda this: len(this.merged) >= 12)
    before = settled(first, one)
    first.kill()
    held = dict(one.fragments)
    second = here.syncer("--record")
    welcome = one.come_back()
    after = second.serving().status()
    assert welcome.versions == tuple(one.versions)
    assert (after.syncer_step, after.merged_tokens) == (before.syncer_step, before.merged_tokens)
    assert [learner.merged_tokens for learner in after.learners] == [one.merged_tokens for one in before.learners]
    assert after.recovered is not None
    assert (after.recovered.restored, after.recovered.lost, after.recovered.senders) == (before.syncer_step, 0, 1)
    assert after.bytes_by_region[0].up.bulk > sum(4 * fragment.numel for fragment in here.job.layout.fragments)
    assert "diloco_recovered_versions 1" in second.page("/metrics")
    one.load(welcome)
    assert all(torch.equal(one.fragments[p], held[p]) for p in held)
    one.merged.clear()
    one.train(lambda this: len(this.merged) >= 4)
    second.terminate()
    here.replays()


def test_other_bytes_are_refused_and_the_next_learner_asked(scene: Callable[..., Scene]) -> None:
    here = scene()
    first, liar, other = here.syncer().serving(), here.learner(), here.learner(LEARNERS[1])
    other.begin()
    liar.begin().train(lambda this: len(this.merged) >= 8)
    before = settled(first, liar, other)
    first.kill()
    liar.altered = lambda values: values + 1e-3
    second = here.syncer()
    answers: list[Welcome] = []
    lying = threading.Thread(target=lambda: answers.append(liar.come_back()))
    lying.start()
    second.wait_for("sent something else than version")
    answers.append(other.come_back())
    lying.join(WAIT_SECONDS)
    status = second.serving().status()
    assert status.recovered is not None
    assert (status.recovered.restored, status.recovered.lost) == (before.syncer_step, 0)
    assert status.recovered.senders == 1
    assert all(not receipt.accepted for _, receipt in liar.receipts)
    assert all(receipt.accepted for _, receipt in other.receipts)
    assert [one.versions for one in answers] == [tuple(other.versions)] * 2


def test_when_nobody_holds_it_the_syncer_goes_on_from_its_checkpoint(scene: Callable[..., Scene]) -> None:
    here = scene()
    first, one = here.syncer().serving(), here.learner()
    one.begin().train(lambda this: len(this.merged) >= 8)
    before = settled(first, one)
    first.kill()
    one.fragments = {}
    saved = checkpoint_names(here.directory / "checkpoints")
    second = here.syncer()
    one.come_back()
    status = second.serving().status()
    assert status.recovered is not None
    assert (status.recovered.restored, status.recovered.lost) == (0, before.syncer_step)
    assert status.syncer_step == 0
    assert checkpoint_names(here.directory / "checkpoints") == saved
    assert "no learner holds what was merged after checkpoint" in second.log


def test_stopped_or_killed_while_it_collects_it_begins_anew(scene: Callable[..., Scene]) -> None:
    here = scene()
    first, one = here.syncer().serving(), here.learner()
    one.begin().train(lambda this: len(this.merged) >= 8)
    before = settled(first, one)
    first.kill()
    saved = checkpoint_names(here.directory / "checkpoints")
    for end in (SyncerProcess.terminate, SyncerProcess.kill):
        collecting = here.syncer()
        collecting.wait_for("takes them from learners")
        assert not end(collecting)
        assert checkpoint_names(here.directory / "checkpoints") == saved
    last = here.syncer()
    one.come_back()
    status = last.serving().status()
    assert status.epoch == 4
    assert status.recovered is not None
    assert (status.recovered.restored, status.recovered.lost) == (before.syncer_step, 0)
    assert status.syncer_step == before.syncer_step
    last.kill()
    here.replays()


def test_without_room_for_a_checkpoint_it_goes_on_from_the_one_it_has(scene: Callable[..., Scene]) -> None:
    here = scene()
    first, one = here.syncer().serving(), here.learner()
    one.begin().train(lambda this: len(this.merged) >= 8)
    settled(first, one)
    first.kill()
    second = here.syncer(before=("prlimit", "--fsize=20000"))
    one.come_back()
    status = second.serving().status()
    assert "what learners hold is not used, as it cannot be written" in second.log
    assert (status.syncer_step, status.recovered and status.recovered.restored) == (0, 0)
