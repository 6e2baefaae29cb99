"""Which learners and outer gradients a real syncer process accepts, and how it answers the others."""

import re
import threading

import pytest
import torch

from diloco.wire.errors import RefusedError
from diloco.wire.messages import FragmentWanted, Refused, Welcome
from tests.integration.two_learners import LEARNERS, learner
from tests.support.scripted_learner import WAIT_SECONDS, ScriptedLearner
from tests.support.syncer_process import Serve

pytestmark = pytest.mark.processes


def asked(one: ScriptedLearner, two: ScriptedLearner) -> FragmentWanted:
    """Make steps on both until the first gets a request for a fragment."""

    def both() -> None:
        one.step()
        two.step()

    return one.wanted(both)


def test_only_what_was_asked_for_is_taken_in(serve: Serve) -> None:
    job, syncer = serve(quorum=2, tokens=10_000_000)
    with learner(job, syncer) as one, learner(job, syncer, LEARNERS[1]) as two:
        one.begin()
        two.begin()
        wanted = asked(one, two)
        payload = one.codec.encode(one.gradient(wanted.fragment))
        for changes in (
            {"version": wanted.version + 1},
            {"attempt": wanted.attempt + 1},
            {"fragment": 3},
            {"fragment": 1000},
            {"incarnation": one.incarnation + 1_000},
            {"incarnation": two.incarnation},
            {"learner": "here/cpu/7"},
            {"epoch": "0"},
            {"codec": "Int4"},
            {"base_version": wanted.version},
        ):
            with pytest.raises(RefusedError):
                one.push(wanted, payload, **changes)
        with pytest.raises(RefusedError, match="bytes in codec None, not"):
            one.push(wanted, torch.zeros(payload.numel() + 4, dtype=torch.uint8))
        poisoned = payload.clone()
        poisoned[:4] = torch.tensor([float("nan")]).view(torch.uint8)
        refused = one.push(wanted, poisoned)
        assert not refused.accepted
        assert "not finite" in refused.reason
        assert one.push(wanted, payload).accepted
        # Sent again, as by a learner that the first answer did not reach, it gets the same answer and counts once.
        assert one.push(wanted, payload).accepted
        with pytest.raises(RefusedError, match="not yet at"):
            one.pull(0, 1000)
        with pytest.raises(RefusedError, match="they count from 0"):
            one.pull(1000, 0)
        metrics = syncer.page("/metrics")
        (refusals,) = re.findall(r"^diloco_pushes_refused_total (\S+)$", metrics, re.MULTILINE)
        assert float(refusals) == 12, "once for each push, whatever the number of its connections"
        assert "diloco_inbox_bytes" in metrics
        assert syncer.page("/healthz").startswith("event loop lag")
        assert syncer.page("/readyz") == "serving\n"


def test_an_outer_gradient_that_comes_after_the_merge_is_late(serve: Serve) -> None:
    job, syncer = serve(tokens=10_000_000)
    with learner(job, syncer) as one, learner(job, syncer, LEARNERS[1]) as two:
        one.begin()
        two.begin()
        wanted = asked(one, two)
        fast = threading.Thread(target=two.train, args=(lambda this: (wanted.fragment, wanted.version) in this.merged,))
        fast.start()
        fast.join(WAIT_SECONDS)
        with pytest.raises(RefusedError, match="was not requested, or no longer is"):
            one.push(wanted)


def test_a_second_process_of_an_identity_replaces_the_first_for_good(serve: Serve) -> None:
    job, syncer = serve()
    with learner(job, syncer, instance="first") as first, learner(job, syncer, instance="second") as second:
        first.begin()
        second.begin()
        assert first.over.wait(WAIT_SECONDS)
        while not isinstance(message := first.next(), Refused):
            assert message is not None
        assert message.refusal == "Superseded"
        again = first.join()
        assert isinstance(again, Refused)
        assert again.refusal == "Superseded"
        second.train(lambda this: len(this.merged) >= 2)


def test_a_process_whose_link_broke_is_let_in_again_without_loading(serve: Serve) -> None:
    job, syncer = serve()
    with learner(job, syncer) as one:
        one.begin().train(lambda this: len(this.merged) >= 2)
        one.hang_up()
        answer = one.join(epoch=one.epoch, versions=tuple(one.versions))
        assert isinstance(answer, Welcome)
        assert answer.load == ()
        other_epoch = learner(job, syncer, LEARNERS[1])
        with other_epoch:
            answer = other_epoch.join(epoch="99", versions=tuple(one.versions))
            assert isinstance(answer, Welcome)
            assert answer.load == (0, 1, 2, 3)


def test_processes_of_another_job_or_model_are_told_so(serve: Serve) -> None:
    job, syncer = serve()
    with learner(job, syncer) as one:
        one.job = "other"
        with pytest.raises(RefusedError, match="job 'small', not of 'other'"):
            one.join()
        one.job = job.name
        with pytest.raises(RefusedError, match="has another model than the syncer"):
            one.join(layout_digest="0" * 64)
        one.learner = "there/cpu/0"
        answer = one.join()
        assert isinstance(answer, Refused)
        assert answer.refusal == "UnknownLearner"
