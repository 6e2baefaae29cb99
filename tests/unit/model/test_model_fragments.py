import pytest
import torch

from diloco.model import build_model, layout_of, read_fragment, write_fragment
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


@pytest.mark.parametrize("wrong", [torch.zeros(3), torch.zeros(2120, dtype=torch.float64)])
def test_a_buffer_of_another_size_or_type_is_refused(wrong: torch.Tensor) -> None:
    model = tiny_model()
    (fragment,) = layout_of(model, 1).fragments
    with pytest.raises(ValueError, match=f"fragment 0 is {fragment.numel} f32 elements, not"):
        write_fragment(model, fragment, wrong)
    with pytest.raises(ValueError, match=f"fragment 0 is {fragment.numel} f32 elements, not"):
        read_fragment(model, fragment, wrong)
