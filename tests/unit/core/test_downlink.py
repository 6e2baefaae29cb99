from dataclasses import dataclass, field

import pytest
import torch

from diloco.core.codec import Codec, CodecError, PlainCodec, codec_named
from diloco.core.downlink import Update, apply_update, downlink_codec, encode_update
from diloco.core.merge import Pass
from diloco.core.sizes import BLOCK, ENCODINGS
from diloco.syncer.block_threads import BlockThreads

CODECS = (codec_named("BF16"), codec_named("Int8"))
by_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)


def random(numel: int, seed: int, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def update_of(numel: int) -> Update:
    base = random(numel, 0)
    rest = random(numel, 2, 1e-4)
    return Update(base, base + random(numel, 1, 1e-2), rest, rest)


@dataclass(frozen=True)
class WatchedCodec(PlainCodec):
    """Keeps what it encodes."""

    encoded: list[torch.Tensor] = field(default_factory=list)

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        self.encoded.append(values)
        return super().encode(values)


def applied(codec: Codec, payload: torch.Tensor | None, base: torch.Tensor) -> torch.Tensor:
    assert payload is not None
    out = torch.empty_like(base)
    apply_update(codec, payload, base, out)
    return out


def test_f32_needs_no_codec_and_the_others_have_theirs() -> None:
    assert downlink_codec("F32") is None
    assert (downlink_codec("BF16"), downlink_codec("Int8")) == CODECS


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


def test_what_is_below_half_a_step_of_the_codec_gets_through_in_time() -> None:
    current, rest = torch.zeros(2), torch.zeros(2)
    for _ in range(8):
        update = Update(current, current + torch.tensor([127.0, 0.25]), rest, rest)
        encode_update(codec_named("Int8"), update)
        current = update.merged
    assert current[1].item() == pytest.approx(2.0, abs=1.0)
    assert (current + rest).tolist() == [8 * 127.0, 2.0]


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


@by_codec
def test_what_waits_for_a_block_that_cannot_be_encoded_goes_with_it(codec: Codec) -> None:
    update = update_of(BLOCK + 3)
    update = Update(update.base, update.merged, update.residual, torch.full_like(update.rest, 7.0))
    update.merged[0] = 3.4e38
    expected = update.merged + update.residual
    assert encode_update(codec, update)[0] is None
    torch.testing.assert_close(update.merged, expected, rtol=0, atol=1e-6)
    assert not update.rest.any()


def test_beside_its_tensors_an_update_needs_one_block() -> None:
    for numel, most in ((10, 10), (2 * BLOCK + 5, BLOCK)):
        codec = WatchedCodec(ENCODINGS["BF16"], torch.bfloat16)
        encode_update(codec, update_of(numel))
        assert {values.untyped_storage().nbytes() for values in codec.encoded} == {4 * most}


@by_codec
def test_what_cannot_be_encoded_gives_the_same_result_in_any_block_order(codec: Codec) -> None:
    def backwards(one_pass: Pass, blocks: range) -> None:
        one_pass(reversed(blocks))

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
