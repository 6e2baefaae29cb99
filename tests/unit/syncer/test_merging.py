import pytest
import torch

from diloco.core.engine.actions import Member, Merge
from diloco.core.fragments import TensorSpec, partition
from diloco.core.merge.codecs import codec_named
from diloco.core.merge.downlink import apply_update
from diloco.core.merge.outliers import LEAST_PAST
from diloco.spec.outer_choice import AVERAGE
from diloco.spec.sync import OuterOptimizer, SyncSpec
from diloco.syncer.merging import MergeResult, Merging
from diloco.syncer.store import FragmentStore, digest_of
from diloco.wire.messages import PushKey

LAYOUT = partition([TensorSpec("a", (10,), embedding=False)], 1)
PLAIN = {"merge": "Mean", "fragments": 1, "compression": "None"}


def store(*, residuals: bool = False) -> FragmentStore:
    """At version 3, with versions 2 and 1 before it: parameters are 3.0, 2.0 and 1.0."""
    store = FragmentStore(LAYOUT, older_versions=2, residuals=residuals)
    store.put(0, 1, torch.full((10,), 1.0))
    for version in (2, 3):
        target = store.target(0)
        target.merge.parameters.fill_(float(version))
        store.commit(0, version, target, b"")
    return store


def merge(
    store: FragmentStore,
    sync: SyncSpec,
    gradients: dict[str, tuple[float, int]],
    outer: OuterOptimizer = AVERAGE,
) -> MergeResult:
    """Merge learners' constant outer gradients, each with its base version."""
    members = tuple(
        Member(learner, 1, 1, base, 1, 1, 1 / len(gradients), "") for learner, (_, base) in gradients.items()
    )
    payloads = {
        PushKey(learner, 1, 0, 4, 1): torch.full((10,), value).view(torch.uint8)
        for learner, (value, _) in gradients.items()
    }
    merging = Merging(LAYOUT, sync, outer)
    return merging.run(merging.prepare(Merge(0, 4, members, ""), store, payloads.__getitem__))


def test_the_result_is_not_in_the_store_before_it_is_committed() -> None:
    held = store()
    result = merge(held, SyncSpec.model_validate(PLAIN), {"a": (0.8, 3), "b": (1.2, 3)})
    assert held.versions == (3,)
    assert torch.equal(result.made.merge.parameters, torch.full((10,), 2.0))
    assert result.digest == digest_of(result.made.merge.parameters)
    assert (result.event.version, result.problem) == (4, "")


def test_a_merge_tells_how_long_it_is_and_how_far_members_agree() -> None:
    sync = SyncSpec.model_validate(PLAIN | {"merge": "RDA"})
    alike, apart = (merge(store(), sync, {"a": (2.0, 3), "b": (other, 3)}) for other in (2.0, -2.0))
    assert alike.agreement == pytest.approx(1.0)
    assert alike.gradient_norm == pytest.approx(2 * 10**0.5)
    assert apart.agreement == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(("anchor", "merged"), [("Received", 1.25), ("Current", 0.25)])
def test_the_anchor_says_whether_the_models_own_movement_counts(anchor: str, merged: float) -> None:
    # Measured from version 1 the learner stands at -0.5. The current fragment is 3.0, so from there it moved by 3.5.
    result = merge(store(), SyncSpec.model_validate(PLAIN | {"anchor": anchor}), {"a": (1.5, 1), "b": (2.0, 3)})
    expected = 3.0 - (2.0 + (3.5 if anchor == "Current" else 1.5)) / 2
    assert expected == merged
    assert torch.allclose(result.made.merge.parameters, torch.full((10,), merged))


def test_what_was_merged_before_tells_what_a_learner_alone_usually_brings() -> None:
    held, sync = store(), SyncSpec.model_validate(PLAIN)
    merging = Merging(LAYOUT, sync, AVERAGE)
    problems = []
    for version, value in enumerate([0.01] * LEAST_PAST + [1000.0, 0.01], start=4):
        order = Merge(0, version, (Member("a", 1, 1, version - 1, 1, 1, 1.0, ""),), "")
        payload = torch.full((10,), value).view(torch.uint8)
        result = merging.run(merging.prepare(order, held, lambda _, payload=payload: payload))  # type: ignore[misc]
        held.commit(0, version, result.made, result.digest)
        problems.append([one.learner for one in result.event.left_out])
    assert problems == [[]] * LEAST_PAST + [["a"], []]
    assert torch.allclose(held.current(0).parameters, torch.full((10,), 3.0 - 0.01 * (LEAST_PAST + 1)))


def test_what_is_usual_is_in_the_store_and_a_failed_merge_keeps_it() -> None:
    held, sync = store(), SyncSpec.model_validate(PLAIN)
    for version in (4, 5):
        result = merge(held, sync, {"a": (0.01, 3), "b": (0.012, 3), "c": (0.1 * (version == 4) + 0.011, 3)})
        assert result.clipped == (version == 4)
        held.commit(0, version, result.made, result.digest)
    usual = held.usual(0)
    assert usual.of_several == pytest.approx(0.0118)
    failed = merge(held, sync, {"a": (float("inf"), 3), "b": (float("nan"), 3)})
    held.commit(0, 6, failed.made, failed.digest)
    assert held.usual(0) == usual


def test_a_merge_tells_the_cosines_of_its_members() -> None:
    result = merge(store(), SyncSpec.model_validate(PLAIN), {"a": (0.01, 3), "b": (0.01, 3), "c": (-0.01, 3)})
    assert {one.learner: one.cosine for one in result.event.cosines} == {"c": -1.0}  # what a and b meet adds up to 0


def test_what_cannot_be_merged_leaves_the_fragment_as_it_was_and_says_why() -> None:
    held = store()
    before = held.current(0).parameters.clone()
    result = merge(held, SyncSpec.model_validate(PLAIN), {"a": (3e38, 3), "b": (float("inf"), 3)})
    assert result.problem == "no outer gradient can be merged"
    assert [one.learner for one in result.event.left_out] == ["a", "b"]
    held.commit(0, result.event.version, result.made, result.digest)
    assert held.versions == (4,)
    assert torch.equal(held.current(0).parameters, before)


ENCODED = SyncSpec.model_validate(PLAIN | {"downlink": "Int8"})


def test_an_encoded_merge_is_its_update_added_to_the_version_before() -> None:
    held = store(residuals=True)
    before = held.current(0).parameters.clone()
    result = merge(held, ENCODED, {"a": (0.8, 3), "b": (1.3, 3)})
    update = result.update
    assert update is not None
    assert (update.base_version, update.codec, result.not_encoded) == (3, "Int8", "")
    assert update.digest == digest_of(update.payload)
    made = torch.empty(10)
    apply_update(codec_named("Int8"), update.payload, before, made)
    assert torch.equal(result.made.merge.parameters, made)
    assert result.digest == digest_of(made)
    held.commit(0, 4, result.made, result.digest, update)
    assert held.current(0).update is update
    residual = held.residual(0)
    assert residual is not None
    assert torch.allclose(made + residual, torch.full((10,), 3.0 - 1.05), rtol=0, atol=1e-7)


def test_a_merge_that_fails_leaves_what_waits_waiting_and_is_sent_whole() -> None:
    held = store(residuals=True)
    residual = held.residual(0)
    assert residual is not None
    residual.fill_(0.125)
    result = merge(held, ENCODED, {"a": (float("inf"), 3)})
    assert "not finite" in result.problem
    assert (result.update, result.not_encoded) == (None, "")
    held.commit(0, result.event.version, result.made, result.digest, result.update)
    assert torch.equal(residual, torch.full((10,), 0.125))
    assert held.residual(0) is residual
    assert torch.equal(held.current(0).parameters, torch.full((10,), 3.0))
