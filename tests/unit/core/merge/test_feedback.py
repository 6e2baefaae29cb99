import pytest
import torch

from diloco.core.merge.codec import Codec
from diloco.core.merge.codecs import CODECS, codec_named
from diloco.core.merge.feedback import encode_with_feedback
from diloco.core.sizes import BLOCK
from tests.support.fragment_merge import random


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_the_arguments_are_left_alone(codec: Codec) -> None:
    values, residual = random(100), random(100, seed=1)
    payload, lost = encode_with_feedback(codec, values, residual)
    lost.add_(1.0)
    payload.zero_()
    assert torch.equal(values, random(100))
    assert torch.equal(residual, random(100, seed=1))


def test_more_than_a_block_is_conserved_too() -> None:
    codec, numel = codec_named("Int8"), BLOCK + 5
    payload, lost = encode_with_feedback(codec, random(numel), None)
    out = torch.empty(numel)
    codec.decode_into(payload, 0, out)
    assert torch.equal(out + lost, random(numel))


def test_a_residual_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="the residual has 3 elements, the outer gradient 4"):
        encode_with_feedback(codec_named("Int8"), torch.zeros(4), torch.zeros(3))
