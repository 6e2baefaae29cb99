"""Admitted members that lie: about the size of their pushes, the model's loss, or their identity."""

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from diloco.runtime.process.exits import EXIT_OK
from diloco.wire.errors import IdentityError
from diloco.wire.messages import EvaluationWanted, FragmentWanted, PullHeader, PushReceipt, SyncerMessage
from diloco.wire.tls.certificates import Authority
from testbed.kind.waiting import wait_until
from tests.hostile.conftest import Target
from tests.support.learner_process import tls_flags
from tests.support.scripted_learner import TOKENS_PER_STEP, WAIT_SECONDS, ScriptedLearner
from tests.support.syncer_process import SmallJob, SyncerProcess

pytestmark = pytest.mark.processes

LIAR = "here/cpu/2"
MERGES = 12

Models = dict[tuple[int, int], torch.Tensor]
"""By fragment and version."""


class Member(ScriptedLearner):
    """A member whose outer gradients follow from its name, the fragment and the version; each covers one step."""

    fixed: float | None = None
    """All elements of its outer gradients; None: noise."""

    def push(self, wanted: FragmentWanted, *_: object, **__: object) -> PushReceipt:
        seed = f"{self.learner}, {wanted.fragment}, {wanted.version}"
        drawn = torch.Generator().manual_seed(int.from_bytes(seed.encode()) % (1 << 62))
        made = 0.01 * torch.randn(self.layout.fragments[wanted.fragment].numel, generator=drawn)
        if self.fixed is not None:
            made.fill_(self.fixed)
        return super().push(wanted, made.view(torch.uint8), steps=1, tokens=TOKENS_PER_STEP)

    def pull(self, fragment: int, minimum_version: int, **changes: object) -> PullHeader:
        header = super().pull(fragment, minimum_version, **changes)
        self.held[fragment, header.version] = self.fragments[fragment]
        return header

    @property
    def held(self) -> Models:
        """Everything that it has pulled."""
        made: Models = self.__dict__.setdefault("_held", {})
        return made


@contextlib.contextmanager
def training(*members: ScriptedLearner) -> Iterator[None]:
    """Let all of them train inside, each in a thread."""
    over = threading.Event()
    threads = [threading.Thread(target=lambda one=one: one.train(lambda _: over.is_set())) for one in members]
    with contextlib.ExitStack() as stack:
        for member in members:
            stack.enter_context(member).begin()
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join(WAIT_SECONDS)


def honest_members(target: Target) -> list[Member]:
    return [Member(target.address, target.job, f"here/cpu/{index}") for index in (0, 1)]


def merged(target: Target) -> int:
    return target.syncer.status().syncer_step


@contextlib.contextmanager
def syncer_of(folder: Path, *flags: str, **changes: object) -> Iterator[Target]:
    job = SmallJob(folder, **changes)
    with SyncerProcess(job, folder / "state", *flags) as syncer:
        yield Target(job, syncer.serving())
        assert syncer.terminate() == EXIT_OK
        assert "Traceback" not in syncer.log


@pytest.fixture
def honest_models(tmp_path: Path) -> Models:
    """The models that the two honest members make on their own."""
    (tmp_path / "honest").mkdir()
    with syncer_of(tmp_path / "honest", quorum=2, learners=2, tokens=10_000_000) as target:
        members = honest_members(target)
        with training(*members):
            wait_until(lambda: merged(target) >= MERGES + 8)
        return members[0].held


def test_outer_gradients_far_too_large_are_left_out_others_train_on(tmp_path: Path, honest_models: Models) -> None:
    with syncer_of(tmp_path, quorum=3, learners=3, tokens=10_000_000) as target:
        honest, liar = honest_members(target), Member(target.address, target.job, LIAR)
        liar.fixed = 1e20
        with training(*honest, liar):
            wait_until(lambda: merged(target) >= MERGES)
            status, counted = target.syncer.status(), target.metric("diloco_members_left_out_total")
    of = {learner.id: learner for learner in status.learners}
    assert of[LIAR].left_out >= MERGES - 1  # one merge may be under way
    assert "times as large in" in of[LIAR].left_out_reason
    assert of[LIAR].left_out_now
    assert of[LIAR].merged_tokens == 0
    assert liar.merged == []
    assert counted >= of[LIAR].left_out
    for member in honest:
        assert (of[member.learner].left_out, of[member.learner].left_out_reason) == (0, "")
        assert of[member.learner].state == "Training"
        assert len(member.merged) > MERGES // 2
    both = honest[0].held.keys() & honest_models.keys()
    assert max(version for _, version in both) > 1
    for one in both:
        assert honest[0].held[one].isfinite().all()
        torch.testing.assert_close(honest[0].held[one], honest_models[one], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("claimed_seconds", [0.0, 1e9])
def test_what_a_member_says_of_its_steps_is_bounded_by_its_reports(tmp_path: Path, claimed_seconds: float) -> None:
    with syncer_of(tmp_path, learners=3, tokens=10_000_000) as target:
        honest, liar = honest_members(target), Member(target.address, target.job, LIAR)
        liar.step_seconds = claimed_seconds
        with training(*honest, liar):
            wait_until(lambda: merged(target) >= 2 * MERGES)
            found = {one.id: one.step_seconds for one in target.syncer.status().learners}
    others = max(found[member.learner] or 0.0 for member in honest)
    assert 0.1 * others < (found[LIAR] or 0.0) < 1000 * others


class Steady(ScriptedLearner):
    """A member that makes a step at most every tenth of a second."""

    _stepped_at = 0.0

    def step_within_bound(self) -> None:
        if time.monotonic() - self._stepped_at >= 0.1:
            self._stepped_at = time.monotonic()
            self.make_step()

    def make_step(self) -> None:
        super().step_within_bound()


class Boaster(Steady):
    """One that reports many times the steps that it makes, and pushes as many as it may."""

    def make_step(self) -> None:
        self.steps += 24
        self.step()

    def push(self, wanted: FragmentWanted, *_: object, **__: object) -> PushReceipt:
        payload = self.codec.encode(self.gradient(wanted.fragment))
        steps, tokens = self.bound_steps, self.bound_steps * TOKENS_PER_STEP
        return super().push(wanted, payload, steps=steps, tokens=tokens)


def test_a_member_that_reports_25_times_its_steps_weighs_as_one(tmp_path: Path) -> None:
    with syncer_of(tmp_path, learners=4, tokens=10_000_000) as target:
        honest = [Steady(target.address, target.job, f"here/cpu/{index}") for index in range(3)]
        for member in honest:
            member.step_seconds = 10.0  # no wait of theirs is left out
        liar = Boaster(target.address, target.job, "here/cpu/3")
        with training(*honest, liar):
            wait_until(lambda: merged(target) >= 10 * MERGES)
            of = {one.id: one for one in target.syncer.status().learners}
    told, others = of[liar.learner], [of[member.learner] for member in honest]
    assert told.tokens > 10 * max(one.tokens for one in others)
    assert told.counted_share < 0.5
    # The others lose the steps that they make while a fragment is on its way; it answers with as many as it may.
    assert told.merged_tokens < 2.5 * max(one.tokens for one in others)
    assert max(one.counted_share for one in others) == 1.0


class Judge(ScriptedLearner):
    """Whoever is asked first to evaluate the final model flatters it; another one holds its answer back."""

    liars: list[str]
    """Their names, which all of them share."""
    may_speak: threading.Event

    def obey(self, message: SyncerMessage) -> None:
        if isinstance(message, EvaluationWanted) and message.final:
            self.liars.extend(() if self.liars else (self.learner,))
            assert self.lies or self.may_speak.wait(WAIT_SECONDS)
        super().obey(message)

    @property
    def lies(self) -> bool:
        return self.learner in self.liars

    def evaluation_loss(self) -> float:
        return 1e-6 if self.lies else super().evaluation_loss()


def test_a_made_up_evaluation_is_doubted_and_the_job_does_not_end_on_it(tmp_path: Path) -> None:
    with syncer_of(tmp_path, quorum=2) as target:
        members = [Judge(target.address, target.job, f"here/cpu/{index}") for index in (0, 1)]
        liars: list[str] = []
        may_speak = threading.Event()
        for member in members:
            member.liars, member.may_speak = liars, may_speak
        with training(*members):
            wait_until(lambda: any(one.final for one in target.syncer.status().evaluations))
            status = target.syncer.status()
            assert status.phase == "Evaluating"
            assert status.evaluations[-1].doubted
            assert (status.evaluations[-1].loss, status.evaluations[-1].final) == (1e-6, True)
            assert status.eval_loss is None or status.eval_loss > 1e-6
            (honest,) = (member for member in members if not member.lies)
            may_speak.set()
            wait_until(lambda: honest.finished is not None)
        status = target.syncer.status()
        assert status.phase == "Complete"
        assert status.evaluations[-1].final
        assert not status.evaluations[-1].doubted
        assert status.eval_loss == status.evaluations[-1].loss
        assert all(one.doubted == (one.loss == 1e-6) for one in status.evaluations)
        assert honest.finished is not None
        assert honest.finished.complete


def test_a_certificate_of_one_pool_does_not_speak_for_a_learner_of_another(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    told = "the certificate is that of pool here/gpu, the message says here/cpu/0"
    with syncer_of(tmp_path, *tls_flags(authority.server()), tokens=10_000_000) as target:
        own, other = (authority.learner(target.job.name, f"here/{pool}", pool) for pool in ("cpu", "gpu"))
        honest, thief = (
            ScriptedLearner(target.address, target.job, "here/cpu/0", instance, tls)
            for instance, tls in (("honest", own), ("thief", other))
        )
        with honest, thief:
            with pytest.raises(IdentityError, match=told):
                thief.join()
            wanted = honest.begin().wanted()
            thief.welcome = honest.welcome  # it has learned everything
            with pytest.raises(IdentityError, match=told):
                thief.push(wanted)
            with pytest.raises(IdentityError, match=told):
                thief.pull(0, 0)
            assert honest.push(wanted).accepted
            honest.train(lambda one: len(one.merged) > 2)
            (it,) = (one for one in target.syncer.status().learners if one.id == "here/cpu/0")
            assert (it.incarnation, it.restarts, it.left_out) == (honest.incarnation, 0, 0)
            honest.leave()
