"""How far decoded values are from the encoded ones, and what happens to the difference."""

import math
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from diloco.core.merge.codec import Codec, CodecError
from diloco.core.merge.codecs import CODECS, SMALLEST_STEP, ScaledCodec
from diloco.core.merge.feedback import encode_with_feedback
from tests.support.examples import examples

F32_SMALLEST_NORMAL = torch.finfo(torch.float32).smallest_normal

codecs = st.sampled_from(CODECS)
elements = st.floats(-(2.0**60), 2.0**60, width=32)
values_of = st.lists(elements, min_size=1, max_size=300).map(lambda held: torch.from_numpy(np.array(held, np.float32)))


def decoded(codec: Codec, payload: Tensor, numel: int) -> Tensor:
    out = torch.empty(numel)
    codec.decode_into(payload, 0, out)
    return out


def step_of(codec: ScaledCodec, group: Tensor) -> float:
    """The least multiple of a bf16's last place that is not below the largest magnitude over the limit."""
    mantissa, exponent = math.frexp((group.abs().max() / codec.limit).item())
    return math.ldexp(math.ceil(mantissa * 256) / 256, exponent)


def bound_of_sparse(codec: Codec, group: Tensor) -> Tensor:
    """What is sent is at most as far off as the largest; what is not is lost, and no larger than the least sent."""
    largest = group.abs().sort(descending=True).values
    least = largest[codec.encoding.sent(len(group)) - 1]
    return torch.where(group.abs() >= least, largest[0] * (1 + 2.0**-8), group.abs()) + F32_SMALLEST_NORMAL


def bound(codec: Codec, values: Tensor) -> Tensor:
    """Largest error of each element."""
    if codec.name == "None":
        return torch.zeros_like(values)
    if codec.encoding.kept:
        return torch.cat([bound_of_sparse(codec, group) for group in torch.split(values, codec.encoding.group)])
    if not isinstance(codec, ScaledCodec):
        return values.abs() * 2.0**-8 + F32_SMALLEST_NORMAL
    groups = torch.split(values, codec.encoding.group)
    steps = torch.cat([torch.full_like(group, step_of(codec, group)) for group in groups])
    return (steps / 2 * (1 + 2.0**-20)).clamp(min=codec.limit * SMALLEST_STEP)


@given(codecs, values_of)
def test_errors_stay_within_the_codecs_bound(codec: Codec, values: Tensor) -> None:
    payload = codec.encode(values)
    assert payload.numel() == codec.payload_bytes(values.numel())
    codec.check(payload, values.numel())
    error = (decoded(codec, payload, values.numel()) - values).abs()
    assert (error <= bound(codec, values)).all()


def nearest(codec: ScaledCodec, values: Tensor) -> Tensor:
    """What a codec's definition makes of ``values``, group by group."""
    made = []
    for group in torch.split(values, codec.encoding.group):
        step = step_of(codec, group)
        codes = (group / step).round() if step >= SMALLEST_STEP else 0 * group
        assert codes.abs().max() <= codec.limit
        made.append(codes.to(torch.int8) * step)
    return torch.cat(made)


@given(st.sampled_from([codec for codec in CODECS if isinstance(codec, ScaledCodec)]), values_of)
def test_codes_are_the_nearest_multiples_of_the_groups_step_to_the_bit(codec: ScaledCodec, values: Tensor) -> None:
    expected = nearest(codec, values)
    assert torch.equal(decoded(codec, codec.encode(values), len(values)).view(torch.int32), expected.view(torch.int32))
    _, lost = encode_with_feedback(codec, values, None)
    assert torch.equal(lost.view(torch.int32), (values - expected).view(torch.int32))


@given(st.sampled_from([codec for codec in CODECS if not codec.encoding.group]), values_of)
def test_encoding_what_was_decoded_without_scales_loses_no_more(codec: Codec, values: Tensor) -> None:
    once = decoded(codec, codec.encode(values), values.numel())
    assert torch.equal(decoded(codec, codec.encode(once), values.numel()), once)


@given(codecs, values_of, st.floats(-1.0, 1.0, width=32))
def test_what_is_sent_and_what_is_kept_is_what_was_given_to_the_bit(codec: Codec, values: Tensor, share: float) -> None:
    residual = values.flip(0) * share
    payload, lost = encode_with_feedback(codec, values, residual)
    sent = decoded(codec, payload, values.numel())
    if codec.encoding.kept:  # a magnitude may be far from its value: the difference is rounded
        torch.testing.assert_close(lost, (values + residual).double().sub(sent).float(), rtol=0, atol=0)
    else:
        assert torch.equal(sent + lost, values + residual)


@given(codecs, st.integers(1, 200), st.integers(0, 1000), st.integers(1, 40))
@settings(max_examples=examples(50))
def test_over_a_life_nothing_is_lost_but_the_last_residual(codec: Codec, numel: int, seed: int, rounds: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    given_sum, sent_sum = torch.zeros(numel, dtype=torch.float64), torch.zeros(numel, dtype=torch.float64)
    residual: Tensor | None = None
    for _ in range(rounds):
        values = torch.randn(numel, generator=generator)
        payload, residual = encode_with_feedback(codec, values, residual)
        given_sum += values
        sent_sum += decoded(codec, payload, numel)
    assert residual is not None
    torch.testing.assert_close(sent_sum + residual, given_sum, rtol=0, atol=rounds * 1e-6)


@given(codecs, st.integers(1, 2 * 4096 + 9), st.data())
def test_any_bytes_decode_to_finite_values_or_are_refused(codec: Codec, numel: int, data: st.DataObject) -> None:
    size = codec.payload_bytes(numel)
    payload = torch.from_numpy(np.frombuffer(bytearray(data.draw(st.binary(min_size=8, max_size=64))), np.uint8))
    payload = payload.repeat(-(-size // len(payload)))[:size]
    try:
        codec.check(payload, numel)
    except CodecError:
        with suppress(CodecError):
            decoded(codec, payload, numel)
    else:
        assert torch.isfinite(decoded(codec, payload, numel)).all()
    with pytest.raises(CodecError, match="bytes, not"):
        codec.check(payload[:-1], numel)
