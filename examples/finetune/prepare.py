"""Makes what you would bring along: a model of Hugging Face's format with weights, and text to fine-tune it on.

python examples/finetune/prepare.py FOLDER    # makes FOLDER/base and FOLDER/sums.jsonl
"""

import json
import sys
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

END = "<|end|>"


def main(folder: Path) -> None:
    """Write both."""
    folder.mkdir(parents=True, exist_ok=True)
    pairs = [(f"{a}+{b}=", str(a + b)) for a in range(60) for b in range(60)]
    rows = [{"question": asked, "answer": answer, "text": asked + answer} for asked, answer in pairs]
    (folder / "sums.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")

    vocabulary = {character: number for number, character in enumerate("0123456789+=")}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END).save_pretrained(folder / "base")
    config = LlamaConfig(
        vocab_size=len(vocabulary) + 1,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=len(vocabulary),
    )
    set_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder / "base")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
