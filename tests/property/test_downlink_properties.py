"""Whatever merges make, the syncer and all learners hold the same bits, and updates lose nothing."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diloco.core.merge.codec import Codec
from diloco.core.merge.codecs import codec_named
from diloco.core.merge.downlink import Update, apply_update, encode_update
from tests.support.examples import examples

DENSE = [codec_named("BF16"), codec_named("Int8")]
by_codec = pytest.mark.parametrize("codec", [*DENSE, codec_named("TopK")], ids=lambda codec: codec.name)
by_dense_codec = pytest.mark.parametrize("codec", DENSE, ids=lambda codec: codec.name)

NUMEL = 300
"""More than one group of Int8, and a rest."""
HALF_ULP = 2.0**-24

scales = st.integers(-40, 20).map(lambda power: 2.0**power)


@st.composite
def trajectories(draw: st.DrawFn) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """A fragment and the changes that merges make to it, f32, of any relative magnitude."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    start = (draw(scales) * random.standard_normal(NUMEL)).astype(np.float32)
    steps = [(draw(scales) * random.standard_normal(NUMEL)).astype(np.float32) for _ in range(draw(st.integers(1, 12)))]
    return torch.from_numpy(start), [torch.from_numpy(step) for step in steps]


@by_codec
@given(trajectory=trajectories())
def test_everybody_holds_the_same_bits_and_each_merge_is_there_or_waits(
    codec: Codec, trajectory: tuple[torch.Tensor, list[torch.Tensor]]
) -> None:
    current, steps = trajectory
    learner, rest = current.clone(), torch.zeros(NUMEL)
    for step in steps:
        merged, waited = current + step, rest.clone()
        wanted = merged.double() + waited.double()
        update = Update(current, merged.clone(), rest, rest)
        payload, problem = encode_update(codec, update)
        assert payload is not None, problem
        received = torch.empty(NUMEL)
        apply_update(codec, payload, learner, received)
        learner, current = received, update.merged
        assert torch.equal(learner.view(torch.int32), current.view(torch.int32))
        # The two roundings of the residual itself, and nothing else.
        lost = (current.double() + rest.double() - wanted).abs()
        allowed = HALF_ULP * (rest.double().abs() + (merged.double() - current.double()).abs()) + 1e-44
        assert (lost <= allowed).all()


@by_dense_codec
@given(trajectory=trajectories(), numbers=st.integers(0, 2**32))
@settings(max_examples=examples(15))
def test_what_waits_stays_below_what_one_encoding_can_lose(
    codec: Codec, trajectory: tuple[torch.Tensor, list[torch.Tensor]], numbers: int
) -> None:
    # Updates of one size for long: a residual that grew with their number would be an update that never arrives.
    current = trajectory[0]
    random = np.random.default_rng(numbers)
    rest = torch.zeros(NUMEL)
    size = 1e-2 * float(current.abs().max())
    for _ in range(40):
        step = torch.from_numpy((size * random.standard_normal(NUMEL)).astype(np.float32))
        update = Update(current, current + step, rest, rest)
        assert encode_update(codec, update)[0] is not None
        current = update.merged
    assert rest.abs().max() <= size
