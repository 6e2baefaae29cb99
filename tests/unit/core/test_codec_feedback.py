import pytest
import torch

from diloco.core.codec import CODECS, Codec, CodecError, codec_named
from diloco.core.feedback import encode_with_feedback
from diloco.core.sizes import BLOCK


def random(numel: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_the_arguments_are_left_alone(codec: Codec) -> None:
    values, residual = random(100), random(100, 1)
    payload, lost = encode_with_feedback(codec, values, residual)
    lost.add_(1.0)
    payload.zero_()
    assert torch.equal(values, random(100))
    assert torch.equal(residual, random(100, 1))


def test_a_codec_that_loses_nothing_leaves_no_residual() -> None:
    payload, lost = encode_with_feedback(codec_named("None"), random(100), None)
    assert torch.equal(payload.view(torch.float32), random(100))
    assert torch.equal(lost, torch.zeros(100))


def test_a_value_below_half_a_step_gets_through_in_time() -> None:
    codec = codec_named("Int4")
    values = torch.tensor([7.0, 0.25])
    residual, through = None, torch.zeros(2)
    for _ in range(8):
        payload, residual = encode_with_feedback(codec, values, residual)
        out = torch.empty(2)
        codec.decode_into(payload, 0, out)
        through += out
    assert through[1].item() == pytest.approx(2.0, abs=0.5)


def test_more_than_a_block_is_conserved_too() -> None:
    codec, numel = codec_named("Int8"), BLOCK + 5
    payload, lost = encode_with_feedback(codec, random(numel), None)
    out = torch.empty(numel)
    codec.decode_into(payload, 0, out)
    assert torch.equal(out + lost, random(numel))


def test_a_residual_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="the residual has 3 elements, the outer gradient 4"):
        encode_with_feedback(codec_named("Int8"), torch.zeros(4), torch.zeros(3))


def test_values_that_are_not_finite_are_refused() -> None:
    with pytest.raises(CodecError, match="not finite"):
        encode_with_feedback(codec_named("Int8"), torch.tensor([1.0, float("nan")]), None)
