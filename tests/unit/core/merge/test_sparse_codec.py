"""What TopK sends, which of equal values, and which bytes are refused."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from diloco.core.merge.codec import CodecError
from diloco.core.merge.codecs import codec_named, uplink_codec
from diloco.core.merge.feedback import encode_with_feedback
from diloco.core.merge.sparse_codec import SparseCodec
from diloco.core.sizes import BLOCK, ENCODINGS
from diloco.spec.sync import SyncSpec
from tests.support.fragment_merge import random

TOP_K = SparseCodec(ENCODINGS["TopK"])
GROUP = 4096
SIZES = [1, 2, 65, GROUP - 1, GROUP, GROUP + 1, 3 * GROUP + 700, BLOCK + GROUP + 9]


def decoded(payload: Tensor, numel: int, codec: SparseCodec = TOP_K) -> Tensor:
    out = torch.full((numel,), math.nan)
    codec.decode_into(payload, 0, out)
    return out


def sent_places(values: Tensor, codec: SparseCodec = TOP_K) -> list[int]:
    places: list[int] = decoded(codec.encode(values), len(values), codec).nonzero().view(-1).tolist()
    return places


@pytest.mark.parametrize("kept", [64, 32, 1024])
@pytest.mark.parametrize("numel", SIZES)
def test_the_largest_of_each_group_are_sent_with_their_signs(numel: int, kept: int) -> None:
    codec, values = SparseCodec(replace(ENCODINGS["TopK"], kept=kept)), random(numel)
    made = decoded(codec.encode(values), numel, codec)
    for group, of_group in zip(torch.split(values, GROUP), torch.split(made, GROUP), strict=True):
        largest = group.abs().topk(math.ceil(len(group) * kept / GROUP)).indices.sort().values
        assert torch.equal(of_group.nonzero().view(-1), largest)
        assert torch.equal(of_group.sign()[largest], group.sign()[largest])


def test_each_magnitude_is_the_mean_of_the_values_that_become_it() -> None:
    values = torch.zeros(GROUP)
    values[[5, 70, 900, 4000]] = torch.tensor([1.0, -2.0, 3.0, -10.0])  # the mean of all is 4
    codec = SparseCodec(replace(ENCODINGS["TopK"], kept=4))
    made = decoded(codec.encode(values), GROUP, codec)
    assert made[[5, 70, 900, 4000]].tolist() == [2.0, -2.0, 2.0, -10.0]
    assert made.count_nonzero() == 4


@pytest.mark.parametrize("size", [1.0, 3.0, 2.0**-130, 3e38])
def test_values_of_one_size_come_back_as_they_are(size: float) -> None:
    values = torch.zeros(GROUP)
    values[::64] = size * torch.tensor([1.0, -1.0]).repeat(32)
    made = decoded(TOP_K.encode(values), GROUP)
    torch.testing.assert_close(made, values, rtol=2.0**-8, atol=0.0)
    assert torch.equal(made == 0.0, values == 0.0)


def test_of_equal_values_those_that_come_first_are_sent() -> None:
    values = torch.ones(2 * GROUP)
    values[100] = -2.0
    assert sent_places(values) == [*range(63), 100, *range(GROUP, GROUP + 64)]


def test_magnitudes_do_not_depend_on_the_order_of_the_values() -> None:
    values = torch.zeros(GROUP)
    values[:64] = random(64) * torch.logspace(-12, 12, 64)
    moved = torch.zeros(GROUP)
    moved[:64] = values[:64].flip(0)
    assert torch.equal(TOP_K.encode(values)[:4], TOP_K.encode(moved)[:4])


def test_a_payload_has_its_documented_form() -> None:
    values = torch.zeros(GROUP)
    values[[0, 3, 4095]] = torch.tensor([1.0, -1.0, 4.0])
    codec = SparseCodec(replace(ENCODINGS["TopK"], kept=3))
    payload = codec.encode(values)
    assert payload[:4].view(torch.bfloat16).tolist() == [1.0, 4.0]
    word = int.from_bytes(payload[4:].numpy().tobytes(), "little")
    places_between, negative, larger = (0, 2, 4091), (0, 1, 0), (0, 0, 1)
    for index in range(3):
        integer = word >> 14 * index & 0x3FFF
        assert (integer & 0xFFF, integer >> 12 & 1, integer >> 13) == (
            places_between[index],
            negative[index],
            larger[index],
        )


@pytest.mark.parametrize("numel", [GROUP, GROUP + 300, BLOCK + 300])
@pytest.mark.parametrize("reads", ["check", "decode"])
def test_a_place_outside_of_its_group_is_refused(numel: int, reads: str) -> None:
    payload = TOP_K.encode(random(numel))
    payload[-20:] = 0xFF
    with pytest.raises(CodecError, match=r"^a TopK payload names value \d+ of a group of (4096|300)$"):
        TOP_K.check(payload, numel) if reads == "check" else decoded(payload, numel)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 1])
def test_a_magnitude_that_is_not_finite_is_refused(wrong: float, place: int) -> None:
    payload = TOP_K.encode(random(BLOCK + 10))
    payload[TOP_K.payload_bytes(BLOCK) :][:4].view(torch.bfloat16)[place] = wrong
    with pytest.raises(CodecError, match=r"^a TopK payload holds a magnitude that is not finite$"):
        TOP_K.check(payload, BLOCK + 10)


def test_values_whose_mean_is_too_large_for_bf16_are_not_encoded() -> None:
    with pytest.raises(CodecError, match="too large for TopK"):
        TOP_K.encode(torch.full((GROUP,), torch.finfo(torch.float32).max))


def test_with_feedback_what_is_never_among_the_largest_is_sent_in_the_end() -> None:
    values = 1.0 + 0.1 * random(GROUP)
    sent, residual = torch.zeros(GROUP), None
    for _ in range(2 * GROUP // 64):
        payload, residual = encode_with_feedback(TOP_K, values, residual)
        sent += decoded(payload, GROUP)
    assert sent.all()
    torch.testing.assert_close(sent / (2 * GROUP // 64), values, rtol=0.0, atol=1.0)


def test_a_job_has_its_own_density() -> None:
    sync = SyncSpec.model_validate({"compression": "TopK", "density": 1 / 32})
    assert uplink_codec(sync).payload_bytes(GROUP) == 4 + 128 * 14 // 8
    assert uplink_codec(SyncSpec.model_validate({"compression": "TopK"})) == codec_named("TopK") == TOP_K
    assert uplink_codec(SyncSpec.model_validate({"compression": "Int4"})) is codec_named("Int4")
