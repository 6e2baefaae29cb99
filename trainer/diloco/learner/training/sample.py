"""Samples text from a trained model. Only for byte vocabularies: a model file contains no tokenizer."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from diloco.learner.data.text import END_OF_DOCUMENT, VOCABULARY_SIZE
from diloco.model.logits import logits_of
from diloco.model.probe import arithmetic, evaluating, vocabulary_size_of


class SampleError(ValueError):
    """The model cannot be sampled from; the text says why."""


@dataclass(frozen=True, slots=True)
class SampleOptions:
    """Sampling options."""

    tokens: int = 256
    """Most tokens to draw; an end of document ends it sooner."""
    temperature: float = 0.8
    """Divides the logits; 0 takes the most likely token."""
    top_k: int = 40
    """Draw only from this many most likely tokens."""
    seed: int = 0
    context: int = 128
    """Tokens that the model sees: the training's sequence length."""


def sample_text(module: nn.Module, prompt: str, options: SampleOptions) -> str:
    """``prompt`` and the model's continuation. The same seed gives the same text; torch's global generator is not used.

    Raises:
        SampleError: the model's vocabulary is not bytes and an end of document.
    """
    vocabulary = vocabulary_size_of(module)
    if vocabulary != VOCABULARY_SIZE:
        raise SampleError(f"the model has {vocabulary} token ids; text needs one of {VOCABULARY_SIZE} (bytes)")
    device = next(module.parameters()).device
    generator = torch.Generator(device).manual_seed(options.seed)
    # In training every document follows an end of document, so the prompt does here.
    drawn = [END_OF_DOCUMENT, *prompt.encode()]
    with torch.no_grad(), evaluating(module), arithmetic(module, device):
        for _ in range(options.tokens):
            seen = torch.tensor([drawn[-options.context :]], dtype=torch.int64, device=device)
            token = _draw(logits_of(module, seen)[0, -1].float(), options, generator)
            if token == END_OF_DOCUMENT:
                break
            drawn.append(token)
    return bytes(drawn[1:]).decode("utf-8", "replace")


def _draw(logits: Tensor, options: SampleOptions, generator: torch.Generator) -> int:
    likeliest = logits.topk(min(options.top_k, len(logits)))
    if options.temperature == 0:
        return int(likeliest.indices[0])
    chances = torch.softmax(likeliest.values / options.temperature, dim=0)
    return int(likeliest.indices[torch.multinomial(chances, 1, generator=generator)])
