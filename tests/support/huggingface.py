"""Folders of Hugging Face's format with models small enough for a unit test."""

from pathlib import Path
from typing import Any

import transformers

SHAPE: dict[str, Any] = {
    "vocab_size": 257,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
}
CONFIGS = {
    "llama": transformers.LlamaConfig(**SHAPE),
    "qwen3": transformers.Qwen3Config(**SHAPE, tie_word_embeddings=True),
    "gemma3": transformers.Gemma3TextConfig(**SHAPE, sliding_window=8),
    "gpt2": transformers.GPT2Config(vocab_size=257, n_positions=64, n_embd=16, n_layer=2, n_head=2),
}


def write_model(folder: Path, family: str = "llama", dtype: str = "float32", **how: Any) -> Path:
    """``folder``, into which ``save_pretrained`` has written a new model; ``how`` are its arguments."""
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[family], dtype=dtype)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder, **how)
    return folder
