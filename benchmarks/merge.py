"""What a merge costs the syncer, against copying the same learners' fragments once.

8 learners, a fragment of 64 MiB in f32 with the tensors of a transformer block: decode, weigh, average, Nesterov step,
and the result as the f32 payload that goes back. The copy moves the 8 decoded fragments (512 MiB) with torch on as many
threads, right before every merge that is timed, so that what else the machine does meets both. Memory is measured in a
process of its own for each codec: what a merge takes beside the state, the payloads and the buffer of its result.
What comes after a merge is timed by itself: encoding the way back (`sync.downlink`), on the same threads, and the
digest, both before the version's release, and the proof after it. So is what a learner does before it: encoding an
outer gradient in Int4 and in TopK, with error feedback.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from diloco.core.fragments import Fragment, TensorSpec, partition
from diloco.core.merge.codec import Codec
from diloco.core.merge.codecs import CODECS, codec_named
from diloco.core.merge.downlink import Update, encode_update
from diloco.core.merge.feedback import encode_with_feedback
from diloco.core.merge.fragment_merge import Contribution, MergeTarget, merge_fragment
from diloco.core.merge.member_sizes import NO_PAST
from diloco.core.merge.rules import rule_named
from diloco.spec.outer_choice import DILOCO
from diloco.spec.sync import MergeName
from diloco.syncer.block_threads import BlockThreads
from diloco.syncer.store import digest_of
from support.job import alone
from support.links.peers import forget_peak, memory_bytes
from support.report import Ratio, command, write_report

METHODS: tuple[MergeName, ...] = ("RDA", "Mean")
DOWNLINKS = ("BF16", "Int8", "TopK")


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

    def merge(self, codec: Codec, method: MergeName, result: Tensor) -> None:
        """One merge into ``result``; the momentum stays in place, as in the syncer."""
        merge_fragment(
            self.fragment,
            self.contributions[codec.name],
            codec=codec,
            rule=rule_named(method),
            parameters=self.parameters,
            momentum=self.momentum,
            outer=DILOCO,
            into=MergeTarget(result, self.momentum),
            run=self.run,
            usual=NO_PAST,
        )
        codec_named("None").encode(result)


def seconds(action: Callable[[], object]) -> float:
    """Wall time of a call."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def beside_copies(actions: Mapping[str, Callable[[], object]], learners: int, rounds: int) -> list[dict[str, Any]]:
    """Each action right after a copy of all learners' fragments; medians over the rounds."""
    source = torch.ones(learners, transformer_fragment().numel)  # pages of its own: unwritten zeros are all one
    copy = torch.zeros_like(source)
    pairs: dict[str, list[tuple[float, float]]] = {}
    for turn in range(rounds + 1):
        for name, action in actions.items():
            pair = seconds(lambda: copy.copy_(source)), seconds(action)
            if turn > 0:  # the first warms up
                pairs.setdefault(name, []).append(pair)
    return [
        {
            "what": name,
            "ratio": statistics.median(own / copied for copied, own in timed),
            "milliseconds": 1e3 * statistics.median(own for _, own in timed),
            "copy_milliseconds": 1e3 * statistics.median(copied for copied, _ in timed),
        }
        for name, timed in pairs.items()
    ]


def time_merges(learners: int, rounds: int, threads: int) -> list[dict[str, Any]]:
    """Every codec and method."""
    setting = Setting(list(CODECS), learners, threads)
    result = torch.zeros(setting.fragment.numel)
    cases = {
        f"{codec.name}_{method}": partial(setting.merge, codec, method, result)
        for method in METHODS
        for codec in CODECS
    }
    return beside_copies(cases, learners, rounds)


def time_updates(learners: int, rounds: int, threads: int) -> list[dict[str, Any]]:
    """Encoding an update and an outer gradient, by codec, and the digest of a new version."""
    setting = Setting([codec_named("BF16")], 1, threads)
    merged, residual = torch.zeros(setting.fragment.numel), torch.zeros(setting.fragment.numel)
    setting.merge(codec_named("BF16"), "RDA", merged)
    update = Update(setting.parameters, merged, residual, residual)
    cases: dict[str, Callable[[], object]] = {
        f"{name}_downlink": partial(encode_update, codec_named(name), update, setting.run) for name in DOWNLINKS
    }
    given = torch.randn(setting.fragment.numel, generator=torch.Generator().manual_seed(1))
    cases |= {
        f"{name}_encode": partial(encode_with_feedback, codec_named(name), given, residual) for name in ("Int4", "TopK")
    }
    cases |= {"digest": partial(digest_of, merged)}
    return beside_copies(cases, learners, rounds)


def extra_memory_bytes(codec: str, learners: int, threads: int) -> int:
    """Growth of this fresh process's peak resident memory by one merge; the buffer of the result was there before."""
    torch.set_num_threads(threads)
    setting = Setting([codec_named(codec)], learners, threads)
    result = torch.empty(setting.fragment.numel).fill_(0.0)  # torch.zeros would not touch the memory
    forget_peak()
    before = memory_bytes("VmRSS")
    setting.merge(codec_named(codec), "RDA", result)
    return memory_bytes("VmHWM") - before


def main() -> None:
    """Measure and report."""
    parser = command(__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="torch's, for both sides")
    parser.add_argument("--learners", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    learners, threads = arguments.learners, arguments.threads
    torch.set_num_threads(threads)
    rows = time_merges(learners, arguments.rounds, threads) + time_updates(learners, arguments.rounds, threads)
    extra = {codec.name: alone(extra_memory_bytes, codec.name, learners, threads) for codec in CODECS}
    fragment_bytes = transformer_fragment().numel * 4
    copied = f"torch's copy of {learners} f32 fragments, {threads} threads"
    fragment = "one f32 fragment (the result, one more, is not counted)"
    ratios = {row["what"]: Ratio(row["ratio"], copied) for row in rows}
    took = {row["what"]: row["milliseconds"] for row in rows}
    for downlink in DOWNLINKS:
        released = took["BF16_RDA"] + took[f"{downlink}_downlink"] + took["digest"]
        ratios[f"{downlink}_release"] = Ratio(released / took["BF16_RDA"], "the RDA merge of BF16 alone")
    ratios |= {f"{name}_extra_memory": Ratio(used / fragment_bytes, fragment) for name, used in extra.items()}
    figures = {
        "fragment_bytes": fragment_bytes,
        "learners": learners,
        "threads": threads,
        "rounds": arguments.rounds,
        "times": rows,
        "extra_memory_bytes": extra,
    }
    write_report(arguments.json, "merge", ratios, figures)


if __name__ == "__main__":
    main()
