import pytest
import torch
from torch import Tensor, nn

from diloco.learner.training.sample import SampleError, SampleOptions, sample_text
from diloco.model.build import build_model
from tests.support.small_job import small_job


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


class Falling(nn.Module):
    """Whatever came: the later a letter, the less likely, each by ``gap`` nats."""

    def __init__(self, gap: float) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.full((257,), -1000.0))
        self.trained: list[bool] = []
        with torch.no_grad():
            self.logits[ord("a") : ord("z") + 1] = -gap * torch.arange(26)

    def forward(self, tokens: Tensor) -> Tensor:
        self.trained.append(self.training)
        return self.logits.expand(1, tokens.shape[1], 257)


@pytest.mark.parametrize(
    ("gap", "options", "letters"),
    [
        (0.01, SampleOptions(tokens=200, top_k=3), "abc"),
        (0.01, SampleOptions(tokens=20, top_k=1, temperature=9.0), "a"),
        (0.01, SampleOptions(tokens=20, temperature=0), "a"),
        (10.0, SampleOptions(tokens=200, top_k=2, temperature=0.1), "a"),
        (10.0, SampleOptions(tokens=200, top_k=2, temperature=100.0), "ab"),
        (0.0, SampleOptions(tokens=1000, top_k=1000), "abcdefghijklmnopqrstuvwxyz"),
    ],
)
def test_it_draws_among_the_likeliest_by_temperature(gap: float, options: SampleOptions, letters: str) -> None:
    model = Falling(gap)
    text = sample_text(model, "", options)
    assert ("".join(sorted(set(text))), len(text)) == (letters, options.tokens)
    assert set(model.trained) == {False}


def test_a_model_with_another_vocabulary_is_refused() -> None:
    model = build_model(small_job(model={"builtin": {"preset": "pico", "vocabularySize": 300}}))
    with pytest.raises(SampleError, match=r"has 300 token ids; text needs one of 257 \(bytes\)"):
        sample_text(model, "x", SampleOptions())
