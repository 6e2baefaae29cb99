from collections import Counter

import pytest
import torch
from torch import Tensor, nn

from diloco.model.build import build_model
from diloco.model.fragments import (
    FragmentsInModule,
    layout_of,
    read_fragment,
    slot_values,
    whole_tensors,
    write_fragment,
)
from tests.support.entrypoints import TinyModel, tiny_model
from tests.support.small_job import small_job


def test_a_tied_weight_counts_once_and_is_an_embedding() -> None:
    layout = layout_of(tiny_model(), 1)
    kinds = {slot.tensor.name: slot.tensor.embedding for slot in layout.fragments[0].slots}
    assert kinds == {"embedding.weight": True, "middle.weight": False, "middle.bias": False}


def test_what_is_written_is_read_back_and_reaches_tied_weights() -> None:
    model = tiny_model()
    assert isinstance(model, TinyModel)
    (fragment,) = layout_of(model, 1).fragments
    values = torch.randn(fragment.numel, generator=torch.Generator().manual_seed(0))
    write_fragment(model, fragment, values)
    out = torch.empty_like(values)
    read_fragment(model, fragment, out)
    assert torch.equal(out, values)
    assert model.output.weight is model.embedding.weight
    assert torch.equal(model.output.weight.flatten(), values[: 257 * 8])
    assert torch.equal(model.scale, torch.full((8,), 2.0))


def test_writing_one_fragment_leaves_the_others() -> None:
    model = build_model(small_job())
    layout = layout_of(model, 6)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    write_fragment(model, layout.fragments[2], torch.zeros(layout.fragments[2].numel))
    written = {slot.tensor.name for slot in layout.fragments[2].slots}
    changed = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert changed == written


class Untied(nn.Module):
    """A model whose embedding and output layer outweigh the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20_011, 8)
        self.positions = nn.Embedding(16, 8)
        self.gate = nn.Linear(8, 16)
        self.middle = nn.Linear(16, 8)
        self.output = nn.Linear(8, 20_011)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        logits: Tensor = self.output(self.middle(torch.tanh(self.gate(hidden))))
        return logits


def test_an_embedding_and_an_output_layer_are_split_by_rows() -> None:
    layout = layout_of(Untied(), 6)
    slots = [slot.tensor for fragment in layout.fragments for slot in fragment.slots]
    split = {name for name, number in Counter(tensor.name for tensor in slots).items() if number > 1}
    assert split == {"embedding.weight", "output.weight"}
    assert {tensor.name for tensor in slots if tensor.embedding} == split | {"positions.weight"}
    assert max(layout.shares) <= 1.4 / 6
    with torch.device("meta"):
        assert layout_of(Untied(), 6).cut == layout.cut


def test_pieces_are_read_written_and_put_together_again() -> None:
    module, other = Untied(), Untied()
    layout = layout_of(module, 6)
    flats = [torch.empty(fragment.numel) for fragment in layout.fragments]
    for fragment, flat in zip(layout.fragments, flats, strict=True):
        read_fragment(module, fragment, flat)
        assert torch.equal(torch.cat([part.reshape(-1) for part in slot_values(module, fragment)]), flat)
        write_fragment(other, fragment, flat)
    expected = dict(module.named_parameters())
    for found in (dict(other.named_parameters()), whole_tensors(layout, flats)):
        assert {name for name, tensor in expected.items() if torch.equal(found[name], tensor)} == set(expected)


def test_fragments_found_once_follow_what_parameters_hold() -> None:
    module = Untied()
    fragments, kept = layout_of(module, 6).fragments, FragmentsInModule(module)
    for _ in range(2):
        for one in module.parameters():
            one.data = torch.randn_like(one)  # as some optimizers and frameworks do
        for fragment in fragments:
            out, expected = torch.empty(fragment.numel), torch.empty(fragment.numel)
            kept.read(fragment, out)
            read_fragment(module, fragment, expected)
            assert torch.equal(out, expected)
            kept.write(fragment, torch.zeros(fragment.numel))
        assert not any(one.count_nonzero() for one in module.parameters())


@pytest.mark.parametrize("wrong", [torch.zeros(3), torch.zeros(2120, dtype=torch.float64)])
def test_a_buffer_of_another_size_or_type_is_refused(wrong: torch.Tensor) -> None:
    model = tiny_model()
    (fragment,) = layout_of(model, 1).fragments
    with pytest.raises(ValueError, match=f"fragment 0 is {fragment.numel} f32 elements, not"):
        write_fragment(model, fragment, wrong)
    with pytest.raises(ValueError, match=f"fragment 0 is {fragment.numel} f32 elements, not"):
        read_fragment(model, fragment, wrong)
