"""Makes what you would bring along: a corpus in Parquet, a tokenizer, and the configuration of a small Llama.

python examples/huggingface/prepare.py FOLDER    # makes FOLDER/corpus/*.parquet and FOLDER/model
"""

import os
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, PreTrainedTokenizerFast

END = "<|end|>"
VOCABULARY = 1024
FILES = 40


def main(folder: Path) -> None:
    """Write both folders."""
    corpus, model = folder / "corpus", folder / "model"
    corpus.mkdir(parents=True)
    sources = sorted(Path(os.__file__).parent.glob("*.py"))[:FILES]
    texts = [path.read_text(encoding="utf-8") for path in sources]
    for part in range(2):
        pyarrow.parquet.write_table(pa.table({"text": texts[part::2]}), corpus / f"{part}.parquet")

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END).save_pretrained(model)
    LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id(END),
        tie_word_embeddings=True,
    ).save_pretrained(model)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
