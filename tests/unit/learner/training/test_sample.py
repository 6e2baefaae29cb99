import pytest
import torch
from torch import Tensor, nn

from diloco.learner.training.sample import SampleError, SampleOptions, sample_text
from diloco.model import build_model
from support.small_job import small_job


class Counting(nn.Module):
    """The next byte is the last one plus one; after ``z`` the document ends. ``seen`` keeps the longest input."""

    def __init__(self) -> None:
        super().__init__()
        self.anchor = nn.Parameter(torch.zeros(()))
        self.seen = 0

    def forward(self, tokens: Tensor) -> Tensor:
        self.seen = max(self.seen, tokens.shape[1])
        following = torch.where(tokens == ord("z"), 256, (tokens + 1) % 257)
        return nn.functional.one_hot(following, 257).float() * 50 + self.anchor


def test_text_goes_on_from_the_prompt_until_the_document_ends() -> None:
    assert sample_text(Counting(), "to v", SampleOptions()) == "to vwxyz"


def test_no_more_tokens_than_asked_and_no_more_context_than_trained() -> None:
    model = Counting()
    assert sample_text(model, "a", SampleOptions(tokens=3, context=2)) == "abcd"
    assert model.seen == 2


def test_one_seed_draws_one_text_and_leaves_global_random_numbers_alone() -> None:
    model = build_model(small_job())
    before = torch.get_rng_state()
    texts = [sample_text(model, "x", SampleOptions(tokens=20, temperature=2.0, seed=seed)) for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training


def test_temperature_zero_takes_the_likeliest() -> None:
    model = build_model(small_job())
    texts = [sample_text(model, "x", SampleOptions(tokens=10, temperature=0, seed=seed)) for seed in (0, 1)]
    assert texts[0] == texts[1]


def test_a_model_with_another_vocabulary_is_refused() -> None:
    model = build_model(small_job(model={"builtin": {"preset": "pico", "vocabularySize": 300}}))
    with pytest.raises(SampleError, match=r"has 300 token ids; text needs one of 257 \(bytes\)"):
        sample_text(model, "x", SampleOptions())
