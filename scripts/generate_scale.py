"""Writes the tables of docs/how-to/scale.md: what `diloco plan` says of models of 1B to 70B parameters.

python scripts/generate_scale.py            # write them
python scripts/generate_scale.py --check    # fail if they are not what it says
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from generated import REPOSITORY, between_marks, main

from diloco.cli.manifests.plan_model import model_of
from diloco.local.view.units import bytes_text, short_duration_text
from diloco.plan.plan import Counted, Plan, make_plan
from diloco.spec import DiLoCoJob, JobSpec
from diloco.spec.job import Metadata
from diloco.world.reading import read_world

PAGE: Final = REPOSITORY / "docs/how-to/scale.md"
COMMAND: Final = "make scale"
LEARNERS, SEQUENCE, FRAGMENTS = 8, 4096, 24
FLOPS: Final = 4e14
"""Operations a second of a device: 40 % of an H100's in BF16."""
DEVICE_BYTES: Final = 80e9
COPIED, JOINING, WRITTEN = 50e9, 1.25e9, 2e9
"""Bytes a second from devices to host, to a learner that joins, and to the syncer's disk."""
WIDE, NARROW = ("BF16", "F32"), ("Int4", "Int8")


@dataclass(frozen=True, slots=True)
class Row:
    """What the page chooses for a model."""

    name: str
    width: int
    inner: int
    layers: int
    heads: int
    processes: int
    nodes: int
    batch_size: int
    micro_batch_size: int
    checkpointing: str
    encodings: tuple[str, str]

    def config(self) -> dict[str, Any]:
        """Of a Llama 3 of this shape; the smallest shares its embedding with its output layer."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.width,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": 8,
            "vocab_size": 128_256,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": self.layers == 16,
        }

    def spec(self, model: dict[str, Any], encodings: tuple[str, str]) -> JobSpec:
        """Of a job that trains ``model`` so."""
        pool = {"name": "a", "learners": LEARNERS, "batchSize": self.batch_size}
        pool |= {"processesPerNode": self.processes, "nodesPerLearner": self.nodes}
        plain: dict[str, Any] = {
            "model": model,
            "data": {"text": {}},
            "training": {
                "tokens": 10**12,
                "sequenceLength": SEQUENCE,
                "microBatchSize": self.micro_batch_size,
                "activationCheckpointing": self.checkpointing,
            },
            "sync": {"fragments": FRAGMENTS, "compression": encodings[0], "downlink": encodings[1]},
            "syncer": {"storage": {"size": "10Ti"}},
            "regions": [{"name": "here", "pools": [pool]}],
        }
        return JobSpec.model_validate(plain)


ROWS: Final = (
    Row("1B", 2048, 8192, 16, 32, 1, 1, 64, 4, "Selective", WIDE),
    Row("8B", 4096, 14_336, 32, 32, 8, 1, 128, 2, "Selective", NARROW),
    Row("28B", 6144, 20_480, 56, 48, 8, 2, 256, 1, "Selective", NARROW),
    Row("70B", 8192, 28_672, 80, 64, 8, 4, 256, 1, "Full", NARROW),
)


@dataclass(frozen=True, slots=True)
class Planned:
    """A row, and what is planned with each pair of encodings."""

    row: Row
    chosen: Plan
    wide: Plan
    narrow: Plan


def planned(row: Row) -> Planned:
    """Counts the model's passes once."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(row.config()))
        size, counted = model_of(row.spec({"huggingface": {"path": folder}}, WIDE), None, None, passes=True)
    assert counted is not None
    wide, narrow = (_plan(row, encodings, size, counted) for encodings in (WIDE, NARROW))
    return Planned(row, wide if row.encodings == WIDE else narrow, wide, narrow)


def _plan(row: Row, encodings: tuple[str, str], size: int | tuple[int, ...] | None, counted: Counted) -> Plan:
    seconds = counted.flops_of_token * row.batch_size * SEQUENCE / (row.processes * row.nodes * FLOPS)
    spec = row.spec({"entrypoint": "mine:make"}, encodings)
    job = DiLoCoJob(api_version="diloco.dev/v1alpha1", kind="DiLoCoJob", metadata=Metadata(name="scale"), spec=spec)
    made = make_plan(job, read_world(spec, ["syncer=10Gbit/s"], [f"*={seconds}"]), size, counted)
    assert made.memory.step_bytes < DEVICE_BYTES, f"{row.name} needs {bytes_text(made.memory.step_bytes)}"
    return made


def choices(rows: list[Planned]) -> Iterator[str]:
    """What is chosen, and what the syncer can follow."""
    yield (
        "| model | parameters | processes x nodes | `batchSize`, `microBatchSize` | `activationCheckpointing` | step | "
        "shortest, BF16 up and F32 down | Int4 up and Int8 down | choose |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for one in rows:
        row, step = one.row, one.chosen.situation.quorum_step_seconds
        assert step is not None
        shortest = [short_duration_text(plan.syncer.limits[0].step_seconds) for plan in (one.wide, one.narrow)]
        cells = [f"{one.chosen.model.parameters / 1e9:.2f}B", f"{row.processes} x {row.nodes}"]
        cells += [f"{row.batch_size}, {row.micro_batch_size}", row.checkpointing, short_duration_text(step)]
        yield _line(row, *cells, *shortest, ", ".join(row.encodings))


def devices(rows: list[Planned]) -> Iterator[str]:
    """The memory of a device and of a learner's first node."""
    yield "| model | parameters, gradients, moments | layers that FSDP gathers | activations | of 80 GB | first node |"
    yield "|---|---|---|---|---|---|"
    for one in rows:
        memory = one.chosen.memory
        passes = memory.passes
        assert passes is not None
        sizes = (memory.device_bytes, passes.gathered_bytes, passes.activation_bytes, memory.step_bytes)
        yield _line(one.row, *map(bytes_text, (*sizes, memory.host_bytes)))


def syncers(rows: list[Planned]) -> Iterator[str]:
    """What the syncer takes, and how long copies do."""
    yield (
        "| model | memory | disk | receives | sends | cores | a learner joins | a checkpoint | a fragment to the host |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for one in rows:
        memory, load = one.chosen.memory, one.chosen.syncer
        parameters = one.chosen.model.parameters
        assert load.received_bytes_per_second is not None
        assert load.sent_bytes_per_second is not None
        rates = (load.received_bytes_per_second, load.sent_bytes_per_second)
        seconds = (4 * parameters / JOINING, memory.checkpoint_bytes / WRITTEN, 4 * parameters / FRAGMENTS / COPIED)
        cells = [*map(bytes_text, (memory.syncer_bytes, memory.disk_bytes)), *(f"{bytes_text(one)}/s" for one in rates)]
        yield _line(one.row, *cells, f"{load.cores:.2g}", *map(short_duration_text, seconds))


def _line(row: Row, *cells: str) -> str:
    return f"| {row.name} | {' | '.join(cells)} |"


def page() -> dict[Path, str]:
    """The page, with its tables."""
    rows = [planned(row) for row in ROWS]
    tables = "\n".join(["", *choices(rows), "", *devices(rows), "", *syncers(rows), ""])
    return {PAGE: between_marks(PAGE, "scale", tables)}


if __name__ == "__main__":
    sys.exit(main(page, COMMAND))
