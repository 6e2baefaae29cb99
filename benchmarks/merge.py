"""What a merge costs the syncer, against copying the same learners' fragments once.

8 learners, a fragment of 64 MiB in f32 with the tensors of a transformer block: decode, weigh, average, Nesterov step,
and the result as the f32 payload that goes back. The copy moves the 8 decoded fragments (512 MiB) with torch on as many
threads, right before every merge that is timed, so that what else the machine does meets both. Memory is measured in a
process of its own for each codec: what a merge takes beside the state, the payloads and the buffer of its result.
Encoding the way back (`sync.downlink`) comes after a merge, on the same threads, and is timed by itself.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from diloco.core.codec import CODECS, Codec, codec_named
from diloco.core.downlink import Update, encode_update
from diloco.core.fragments import Fragment, TensorSpec, partition
from diloco.core.merge import Contribution, MergeTarget, merge_fragment
from diloco.spec.outer_choice import DILOCO
from diloco.syncer.block_threads import BlockThreads
from report import write_report

METHODS: tuple[Literal["RDA", "Mean"], ...] = ("RDA", "Mean")


def transformer_fragment() -> Fragment:
    """One transformer block of width 1024 and a piece of an embedding: 2^24 elements."""
    width = 1024
    shapes: dict[str, tuple[int, ...]] = {
        "embedding": (4083, width),
        "norm1.weight": (width,),
        "norm1.bias": (width,),
        "attention.weight": (3 * width, width),
        "attention.bias": (3 * width,),
        "projection.weight": (width, width),
        "projection.bias": (width,),
        "norm2.weight": (width,),
        "norm2.bias": (width,),
        "up.weight": (4 * width, width),
        "up.bias": (4 * width,),
        "down.weight": (width, 4 * width),
        "down.bias": (width,),
    }
    tensors = [TensorSpec(name, shape, embedding=name == "embedding") for name, shape in shapes.items()]
    return partition(tensors, 1).fragments[0]


class Setting:
    """The fragment's state and what the learners pushed."""

    def __init__(self, codecs: list[Codec], learners: int, threads: int) -> None:
        self.run = BlockThreads(threads)
        self.fragment = transformer_fragment()
        generator = torch.Generator().manual_seed(0)
        numel = self.fragment.numel
        self.parameters = torch.randn(numel, generator=generator)
        self.momentum = torch.zeros(numel)
        shared = torch.randn(numel, generator=generator).mul_(1e-3)
        self.contributions: dict[str, list[Contribution]] = {codec.name: [] for codec in codecs}
        for index in range(learners):
            delta = torch.randn(numel, generator=generator).mul_(2e-3).add_(shared)
            for codec in codecs:
                payload = codec.encode(delta)
                self.contributions[codec.name].append(Contribution(f"region/pool/{index}", 1 / learners, payload))

    def merge(self, codec: Codec, method: Literal["RDA", "Mean"], result: Tensor) -> None:
        """One merge into ``result``; the momentum stays in place, as in the syncer."""
        merge_fragment(
            self.fragment,
            self.contributions[codec.name],
            codec=codec,
            method=method,
            parameters=self.parameters,
            momentum=self.momentum,
            outer=DILOCO,
            into=MergeTarget(result, self.momentum),
            run=self.run,
        )
        codec_named("None").encode(result)


def seconds(action: Callable[[], object]) -> float:
    """Wall time of a call."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def time_merges(learners: int, rounds: int, threads: int) -> list[dict[str, Any]]:
    """Every codec and method, each merge next to a copy; medians over the rounds."""
    setting = Setting(list(CODECS), learners, threads)
    result = torch.zeros(setting.fragment.numel)
    source = torch.ones(learners, setting.fragment.numel)  # pages of its own: unwritten zeros are all one
    copy = torch.zeros_like(source)
    cases = [(codec, method) for method in METHODS for codec in CODECS]
    pairs: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for turn in range(rounds + 1):
        for codec, method in cases:
            copied = seconds(lambda: copy.copy_(source))
            merged = seconds(lambda codec=codec, method=method: setting.merge(codec, method, result))  # type: ignore[misc]
            if turn > 0:  # the first warms up
                pairs.setdefault((codec.name, method), []).append((merged, copied))
    return [
        {
            "codec": codec,
            "method": method,
            "ratio": statistics.median(merged / copied for merged, copied in timed),
            "merge_milliseconds": 1e3 * statistics.median(merged for merged, _ in timed),
            "copy_milliseconds": 1e3 * statistics.median(copied for _, copied in timed),
        }
        for (codec, method), timed in pairs.items()
    ]


def time_updates(learners: int, rounds: int, threads: int) -> dict[str, float]:
    """Encoding an update, by codec, each time next to a copy; medians of the ratio over the rounds."""
    setting = Setting([codec_named("BF16")], 1, threads)
    merged, residual = torch.zeros(setting.fragment.numel), torch.zeros(setting.fragment.numel)
    setting.merge(codec_named("BF16"), "RDA", merged)
    source = torch.ones(learners, setting.fragment.numel)
    copy = torch.zeros_like(source)
    ratios: dict[str, list[float]] = {}
    for turn in range(rounds + 1):
        for codec in (codec_named("BF16"), codec_named("Int8")):
            update = Update(setting.parameters, merged, residual, residual)
            copied = seconds(lambda: copy.copy_(source))
            encoded = seconds(lambda codec=codec, update=update: encode_update(codec, update, setting.run))  # type: ignore[misc]
            if turn > 0:
                ratios.setdefault(codec.name, []).append(encoded / copied)
    return {name: statistics.median(timed) for name, timed in ratios.items()}


def extra_memory_bytes(codec: str, learners: int, threads: int) -> int:
    """Growth of a fresh process's peak resident memory by one merge; the buffer of the result was there before."""
    command = [sys.executable, __file__, "--memory-of", codec, "--learners", str(learners), "--threads", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(json.loads(done.stdout)["extra_bytes"])


def print_extra_memory(codec: Codec, learners: int, threads: int) -> None:
    """The child process of ``extra_memory_bytes``. Linux: it sets back the peak that the kernel keeps."""
    setting = Setting([codec], learners, threads)
    result = torch.empty(setting.fragment.numel).fill_(0.0)  # torch.zeros would not touch the memory
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM := VmRSS
    before = _status_bytes("VmRSS")
    setting.merge(codec, "RDA", result)
    print(json.dumps({"extra_bytes": _status_bytes("VmHWM") - before}))


def _status_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the report here")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="torch's, for both sides")
    parser.add_argument("--learners", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.memory_of:
        print_extra_memory(codec_named(arguments.memory_of), arguments.learners, arguments.threads)
        return
    rows = time_merges(arguments.learners, arguments.rounds, arguments.threads)
    fragment_bytes = transformer_fragment().numel * 4
    extra = {codec.name: extra_memory_bytes(codec.name, arguments.learners, arguments.threads) for codec in CODECS}
    ratios = {f"{row['codec']}_{row['method']}": row["ratio"] for row in rows}
    updates = time_updates(arguments.learners, arguments.rounds, arguments.threads)
    ratios |= {f"{name}_downlink": ratio for name, ratio in updates.items()}
    memory = {f"{name}_extra_memory": extra_bytes / fragment_bytes for name, extra_bytes in extra.items()}
    copied = f"torch's copy of {arguments.learners} f32 fragments, {arguments.threads} threads"
    write_report(
        arguments.json,
        benchmark="merge",
        ratios=ratios | memory,
        figures={
            "fragment_bytes": fragment_bytes,
            "learners": arguments.learners,
            "threads": arguments.threads,
            "rounds": arguments.rounds,
            "merges": rows,
            "extra_memory_bytes": extra,
            "extra_memory_with_result_bytes": {name: used + fragment_bytes for name, used in extra.items()},
        },
        against=dict.fromkeys(ratios, copied)
        | dict.fromkeys(memory, "one f32 fragment (the result, one more, is not counted)"),
    )


if __name__ == "__main__":
    main()
