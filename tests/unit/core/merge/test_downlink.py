import pytest
import torch

from diloco.core.merge.codec import Codec, CodecError
from diloco.core.merge.codecs import codec_named
from diloco.core.merge.downlink import Update, apply_update, downlink_codec, encode_update
from diloco.core.sizes import BLOCK
from diloco.spec.sync import SyncSpec
from diloco.syncer.block_threads import BlockThreads
from tests.support.fragment_merge import WatchedCodec, backwards, random

CODECS = (codec_named("BF16"), codec_named("Int8"), codec_named("TopK"))
by_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)


def update_of(numel: int) -> Update:
    base = random(numel)
    rest = random(numel, seed=2, scale=1e-4)
    return Update(base, base + random(numel, seed=1, scale=1e-2), rest, rest)


def applied(codec: Codec, payload: torch.Tensor | None, base: torch.Tensor) -> torch.Tensor:
    assert payload is not None
    out = torch.empty_like(base)
    apply_update(codec, payload, base, out)
    return out


def test_f32_needs_no_codec_and_the_others_have_theirs() -> None:
    assert downlink_codec(SyncSpec(downlink="F32")) is None
    assert [downlink_codec(SyncSpec(downlink=name)) for name in ("BF16", "Int8")] == list(CODECS[:2])


@pytest.mark.parametrize(("density", "kept"), [(None, 256), (1 / 128, 128), (1 / 4, 1024)])
def test_a_sparse_update_has_room_for_the_values_of_four_learners(density: float | None, kept: int) -> None:
    codec = downlink_codec(SyncSpec(compression="TopK", density=density, downlink="TopK"))
    assert codec is not None
    assert codec.payload_bytes(2 * 4096) == 2 * (4 + kept * 14 // 8)


@by_codec
def test_a_learner_makes_the_bits_that_the_syncer_has(codec: Codec) -> None:
    update = update_of(2 * BLOCK + 777)
    base = update.base.clone()
    payload, problem = encode_update(codec, update)
    assert problem == ""
    assert torch.equal(applied(codec, payload, base), update.merged)
    assert torch.equal(update.base, base)


@by_codec
def test_threads_and_a_buffer_of_its_own_for_the_rest_change_no_bit(codec: Codec) -> None:
    one, two = update_of(3 * BLOCK + 5), update_of(3 * BLOCK + 5)
    two = Update(two.base, two.merged, two.residual, torch.empty_like(two.rest))
    kept = two.residual.clone()
    threads = BlockThreads(3)
    payloads = encode_update(codec, one)[0], encode_update(codec, two, threads)[0]
    threads.close()
    assert payloads[0] is not None
    assert payloads[1] is not None
    assert torch.equal(*payloads)  # type: ignore[arg-type]  # neither is None
    assert torch.equal(one.merged, two.merged)
    assert torch.equal(one.rest, two.rest)
    assert torch.equal(two.residual, kept)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3.4e38])
@by_codec
def test_what_cannot_be_encoded_goes_whole_with_all_that_waits(codec: Codec, value: float) -> None:
    update = update_of(2 * BLOCK + 3)
    update.merged[BLOCK + 1] = value
    merged, waiting = update.merged.clone(), update.rest.clone()
    payload, problem = encode_update(codec, update)
    assert payload is None
    assert problem == f"1 of 3 blocks hold values that are not finite, or too large for {codec.name}"
    assert not update.rest.any()
    whole = torch.arange(len(merged)) != BLOCK + 1
    torch.testing.assert_close(update.merged[whole], (merged + waiting)[whole], rtol=0, atol=1e-6)


def test_beside_its_tensors_an_update_needs_two_blocks() -> None:
    for numel, most in ((10, 10), (2 * BLOCK + 5, BLOCK)):
        codec = WatchedCodec()
        encode_update(codec, update_of(numel))
        assert {values.untyped_storage().nbytes() for values in codec.encoded} == {2 * 4 * most}


@by_codec
def test_what_cannot_be_encoded_gives_the_same_result_in_any_block_order(codec: Codec) -> None:
    made = []
    for run in (backwards, lambda one_pass, blocks: one_pass(blocks)):
        update = update_of(3 * BLOCK)
        update.merged[BLOCK] = float("inf")
        update = Update(update.base, update.merged, update.residual, torch.full_like(update.rest, 7.0))
        encode_update(codec, update, run)
        made.append(update)
    assert torch.equal(made[0].merged, made[1].merged)
    assert torch.equal(made[0].rest, made[1].rest)


def test_tensors_that_do_not_belong_together_are_refused() -> None:
    three, four = torch.zeros(3), torch.zeros(4)
    with pytest.raises(ValueError, match="3, 3, 4, 4 elements"):
        Update(three, three, four, four)
    with pytest.raises(CodecError, match="float64"):
        Update(three, three, three, three.double())


@by_codec
def test_a_payload_of_another_length_is_refused(codec: Codec) -> None:
    with pytest.raises(CodecError):
        apply_update(codec, torch.zeros(3, dtype=torch.uint8), torch.zeros(100), torch.empty(100))
