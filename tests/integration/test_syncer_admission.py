"""Which learners and outer gradients a real syncer process accepts, and how it answers the others."""

import re

import pytest
import torch

from diloco.wire.errors import RefusedError
from diloco.wire.messages import FragmentWanted
from tests.integration.two_learners import LEARNERS, learner
from tests.support.scripted_learner import ScriptedLearner
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
