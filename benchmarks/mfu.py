"""Tokens a second of a learner's inner loop over those of a plain torch loop, on one accelerator, and the MFU of each.

A Llama of 1.2 billion parameters trains in BF16 in both, in one process (`support.loop_pair`), a block of steps of one
after a block of the other. The plain loop is compiled (torch.compile); ours runs as a job's manifest sets it, with a
fragment copied out and one swapped in at every step, and without. Ten minutes are enough.

MFU counts the operations of matrix products, forward and backward: six for each parameter of a layer and token, and
12 x layers x width x sequence for attention (arXiv 2204.02311, appendix B), over the device's peak in BF16.
"""

import copy
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from diloco.learner.data.opening import open_source
from diloco.learner.data.tokenfile import write_token_file
from diloco.learner.training.devices.device import peak_flops, set_up
from diloco.model.build import build_model
from diloco.spec import JobSpec, parse_job
from support.job import manifest
from support.loop_pair import LoopPair, PlainLoop
from support.report import Ratio, Ratios, command, write_report

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "vocab_size": 128_256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
}
"""Llama 3.2 1B's shape."""
SMALL = {**LLAMA, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 512}
"""What shows on a CPU that the benchmark runs."""
FRAGMENTS = 24
CASES: dict[str, dict[str, Any]] = {
    "compiled_alone": {"training": {"compile": True}, "exchange": False},
    "compiled": {"training": {"compile": True}, "exchange": True},
    "default_alone": {"training": {}, "exchange": False},
    "default": {"training": {}, "exchange": True},
}
"""What the manifest's training sets, and whether fragments are exchanged."""


def flops_of_token(shape: dict[str, Any], length: int) -> float:
    """Operations of a token's forward and backward pass."""
    width, inner = shape["hidden_size"], shape["intermediate_size"]
    keys = width * shape["num_key_value_heads"] // shape["num_attention_heads"]
    layer = 2 * width * width + 2 * width * keys + 3 * width * inner
    layers = shape["num_hidden_layers"]
    return float(6 * (layers * layer + width * shape["vocab_size"]) + 12 * layers * width * length)


def write_inputs(folder: Path, shape: dict[str, Any]) -> None:
    """The model's shape, and random tokens."""
    (folder / "config.json").write_text(json.dumps(shape))
    tokens = np.random.default_rng(0).integers(0, shape["vocab_size"], 4_000_000, dtype=np.int64)
    write_token_file(folder / "tokens.bin", [tokens], shape["vocab_size"], "random")


def job_of(folder: Path, shape: dict[str, Any], length: int, batch: int, training: dict[str, Any]) -> JobSpec:
    """A job that trains this shape on the tokens."""
    training = {"tokens": 10**12, "sequenceLength": length, "batchSize": batch, **training}
    sync = {"fragments": min(FRAGMENTS, 9 * shape["num_hidden_layers"]), "interval": FRAGMENTS}
    data = {"tokens": {"path": str(folder / "tokens.bin")}}
    model = {"huggingface": {"path": str(folder)}}
    job = manifest("mfu", {"here": 1}, training=training, sync=sync, data=data, model=model)
    return parse_job(json.dumps(job)).spec


@dataclass(frozen=True, slots=True)
class Size:
    """How much is trained."""

    device: str
    sequence: int
    batch: int
    warm_up_blocks: int
    blocks: int
    block_steps: int


def run_cases(names: Sequence[str], size: Size) -> list[dict[str, Any]]:
    """Tokens a second of each side, by case; all beside the same plain loop."""
    device, length = torch.device(size.device), size.sequence
    on_gpu = device.type == "cuda"
    shape = LLAMA if on_gpu else SMALL

    def clock() -> float:
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        write_inputs(Path(folder), shape)
        spec = job_of(Path(folder), shape, length, size.batch, {})
        source = open_source(spec.data)
        corpus = torch.from_numpy(np.array(source.read(0, len(source))))
        module = build_model(spec)
        plain = PlainLoop(spec, module, corpus, device, bf16=True, compiled=on_gpu)
        for name in names:
            options = CASES[name]
            spec = job_of(Path(folder), shape, length, size.batch, options["training"])
            set_up(spec.training, device, Path(folder))
            pair = LoopPair(
                spec,
                copy.deepcopy(module),
                plain.step,
                device,
                clock,
                block_steps=size.block_steps,
                exchange=bool(options["exchange"]),
                sends=True,
            )
            pair.run((size.warm_up_blocks + size.blocks) * size.block_steps, 10**6)
            rows.append(_row(name, pair, size, shape))
            del pair
            gc.collect()
    return rows


def _row(name: str, pair: LoopPair, size: Size, shape: dict[str, Any]) -> dict[str, Any]:
    """A case's figures, of what comes after the blocks that compile and take memory."""
    tokens = size.batch * size.sequence * size.block_steps
    peak = peak_flops(torch.device(size.device), "BF16")
    row: dict[str, Any] = {"case": name}
    for side, seconds in pair.seconds.items():
        rate = tokens / statistics.median(seconds[size.warm_up_blocks :])
        row[f"{side}_tokens_per_second"] = rate
        row[f"{side}_block_seconds"] = ", ".join(f"{each:.2f}" for each in seconds)
        row[f"{side}_step_milliseconds"] = 1000 * size.batch * size.sequence / rate
        if peak:
            row[f"{side}_mfu"] = rate * flops_of_token(shape, size.sequence) / peak
    return row


def main() -> None:
    """Run the cases and report."""
    parser = command(__doc__)
    parser.add_argument("--case", action="append", choices=CASES, help="only this case")
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cuda, or cpu: a small model"
    )
    parser.add_argument("--sequence", type=int, default=2048, help="tokens of a sequence (2048)")
    parser.add_argument("--batch", type=int, default=8, help="sequences of a step (8)")
    parser.add_argument("--warm-up-blocks", type=int, default=3, help="blocks before (3)")
    parser.add_argument("--blocks", type=int, default=4, help="blocks that are timed (4)")
    parser.add_argument("--block-steps", type=int, default=10, help="steps of a block (10)")
    given = parser.parse_args()
    size = Size(given.device, given.sequence, given.batch, given.warm_up_blocks, given.blocks, given.block_steps)
    rows = run_cases(given.case or list(CASES), size)
    ratios: Ratios = {
        row["case"]: Ratio(
            row["ours_tokens_per_second"] / row["plain_tokens_per_second"], "a compiled plain loop's tokens a second"
        )
        for row in rows
    }
    name = torch.cuda.get_device_name() if given.device.startswith("cuda") else "cpu"
    write_report(given.json, "mfu", ratios, {"accelerator": name, "cases": rows})


if __name__ == "__main__":
    main()
