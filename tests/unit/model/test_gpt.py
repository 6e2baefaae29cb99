import pytest
import torch

from diloco.model.gpt import GPT, GPTConfig, rotary, rotate
from diloco.spec.presets import PRESETS

PARAMETERS = {"pico": 95_616, "nano": 820_480, "micro": 4_787_712, "mini": 25_306_112}


@pytest.fixture(scope="module")
def pico() -> GPT:
    torch.manual_seed(0)
    return GPT(GPTConfig(PRESETS["pico"], 257)).eval()


@pytest.mark.parametrize(("preset", "count"), PARAMETERS.items())
def test_presets_have_their_size_and_enough_tensors_for_24_fragments(preset: str, count: int) -> None:
    with torch.device("meta"):
        model = GPT(GPTConfig(PRESETS[preset], 257))
    parameters = list(model.parameters())
    assert sum(parameter.numel() for parameter in parameters) == count
    assert len(parameters) >= 24


def test_gpt2_has_gpt2s_size_with_its_vocabulary() -> None:
    with torch.device("meta"):
        model = GPT(GPTConfig(PRESETS["gpt2"], 50_257))
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(124e6, rel=0.01)


def test_logits_depend_on_no_later_token(pico: GPT) -> None:
    tokens = torch.randint(0, 257, (2, 12), generator=torch.Generator().manual_seed(1))
    changed = tokens.clone()
    changed[:, 8:] = 0
    with torch.no_grad():
        torch.testing.assert_close(pico(tokens)[:, :8], pico(changed)[:, :8])


def test_the_order_of_earlier_tokens_matters(pico: GPT) -> None:
    with torch.no_grad():
        one, other = pico(torch.tensor([[1, 2, 3]])), pico(torch.tensor([[2, 1, 3]]))
    assert not torch.allclose(one[:, -1], other[:, -1])


def test_rotation_keeps_norms_and_makes_products_depend_on_distance_only() -> None:
    generator = torch.Generator().manual_seed(2)
    query, key = torch.randn(2, 1, 1, 1, 16, generator=generator).expand(2, 1, 1, 10, 16)
    rotation = rotary(torch.arange(10), 16)
    turned_query, turned_key = rotate(query, rotation)[0, 0], rotate(key, rotation)[0, 0]
    torch.testing.assert_close(turned_query.norm(dim=-1), query[0, 0].norm(dim=-1))
    torch.testing.assert_close(turned_query[7] @ turned_key[4], turned_query[5] @ turned_key[2])


def test_untied_output_is_a_tensor_of_its_own() -> None:
    tied = GPT(GPTConfig(PRESETS["pico"], 257))
    untied = GPT(GPTConfig(PRESETS["pico"], 257, tie_embeddings=False))
    assert tied.output.weight is tied.embedding.weight
    assert len(list(untied.parameters())) == len(list(tied.parameters())) + 1


def test_documents_of_one_row_have_the_logits_that_they_have_alone(pico: GPT) -> None:
    tokens = torch.randint(0, 257, (1, 12), generator=torch.Generator().manual_seed(1))
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 0, 1, 2, 3, 4, 5]])
    with torch.no_grad():
        alone = torch.cat([pico(tokens[:, first:last]) for first, last in ((0, 5), (5, 6), (6, 12))], 1)
        torch.testing.assert_close(pico(tokens, positions), alone)
        torch.testing.assert_close(pico(tokens, torch.arange(12)[None]), pico(tokens))
