"""Supervised fine-tuning: each example is a question and its answer, and only the answer's tokens count."""

import json
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer

NOT_COUNTED = -100


class Answers:
    """What ``spec.task`` names."""

    def __init__(self, path: str, tokenizer: str, length: int) -> None:
        rows = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
        encode = AutoTokenizer.from_pretrained(tokenizer)
        self.tokens = torch.full((len(rows), length), encode.eos_token_id)
        self.targets = torch.full((len(rows), length), NOT_COUNTED)
        for row, tokens, targets in zip(rows, self.tokens, self.targets, strict=True):
            asked = len(encode(row["question"]).input_ids)
            ids = torch.tensor([*encode(row["question"] + row["answer"]).input_ids, encode.eos_token_id])
            tokens[: len(ids)] = ids
            targets[asked : len(ids)] = ids[asked:]

    def __len__(self) -> int:
        return len(self.tokens)

    def batch(self, numbers):
        return {"tokens": self.tokens[numbers], "targets": self.targets[numbers]}

    def loss(self, module: nn.Module, batch):
        logits, targets = module(batch["tokens"]).logits[:, :-1], batch["targets"][:, 1:]
        summed = cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=NOT_COUNTED, reduction="sum")
        return summed, (targets != NOT_COUNTED).sum()
