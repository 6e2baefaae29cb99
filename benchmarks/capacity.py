"""Processor time of the syncer for each GB of outer gradients that it merges, by learners.

Real processes on this machine. Every merge has every learner; a GB is of the f32 values, however they are encoded.
Counted from the first merge that is seen to the last, without checkpoints. Waiting costs no processor time, so that a
busy machine changes little.

    python benchmarks/capacity.py --json capacity.json
"""

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from diloco.local.status_poll import StatusError, fetch_status
from support.job import manifest, python_path, running
from support.report import Ratio, command, write_report

FRAGMENTS = 8
VOCABULARY = 257
CODECS = {"BF16 up, F32 down": ("BF16", "F32"), "Int4 up, Int8 down": ("Int4", "Int8")}
_LOOK_SECONDS = 1.0


class Reading(NamedTuple):
    """What a syncer has done so far."""

    merges: int
    processor_seconds: float


def run_case(learners: int, codecs: tuple[str, str], merges: int, numel: int) -> dict[str, Any]:
    """Seconds of the syncer for each GB, over at least ``merges`` merges of fragments of ``numel`` parameters."""
    up, down = codecs
    sync = {"fragments": FRAGMENTS, "interval": FRAGMENTS, "quorum": learners, "compression": up, "downlink": down}
    arguments = {"blocks": FRAGMENTS, "numel": numel, "vocabulary": VOCABULARY}
    model = {"entrypoint": "support.capacity.large_model:make", "arguments": arguments}
    training = {"tokens": 10**12, "sequenceLength": 8, "batchSize": 1}
    syncer = {"checkpointEverySeconds": 86_400}
    job = manifest("capacity", {"here": learners}, training=training, sync=sync, model=model, syncer=syncer)
    os.environ["PYTHONPATH"] = python_path()
    with tempfile.TemporaryDirectory() as directory, running(Path(directory), job) as run:
        output, first, last = Path(directory) / "out", None, None
        while last is None or first is None or last.merges - first.merges < merges:
            if run.poll() is not None:
                raise SystemExit("diloco run ended early")
            time.sleep(_LOOK_SECONDS)
            last = _read(output)
            first = first or (last if last is not None and last.merges else None)
    made = last.merges - first.merges
    gigabytes = made * learners * numel * 4 / 1e9
    return {
        "learners": learners,
        "merges": made,
        "processor_seconds_per_merged_gb": (last.processor_seconds - first.processor_seconds) / gigabytes,
    }


def _read(output: Path) -> Reading | None:
    try:
        endpoint = json.loads((output / "syncer" / "endpoint.json").read_text())
        status = fetch_status(endpoint["http"])
        fields = Path(f"/proc/{endpoint['pid']}/stat").read_text().rpartition(")")[2].split()
    except (OSError, StatusError):
        return None
    return Reading(status.syncer_step, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))


def main() -> None:
    """Measure and report."""
    parser = command(__doc__)
    parser.add_argument("--learners", type=int, nargs="+", default=[2, 4, 8], help="so many of them (2 4 8)")
    parser.add_argument("--merges", type=int, default=40, help="merges of each case (40)")
    parser.add_argument("--parameters", type=int, default=1 << 22, help="of each of 8 fragments (4194304)")
    given = parser.parse_args()
    rows = [
        {"codecs": name, **run_case(learners, codecs, given.merges, given.parameters)}
        for name, codecs in CODECS.items()
        for learners in given.learners
    ]
    few = {row["codecs"]: row["processor_seconds_per_merged_gb"] for row in reversed(rows)}
    ratios = {
        f"{row['codecs']}, {row['learners']} learners": Ratio(
            row["processor_seconds_per_merged_gb"] / few[row["codecs"]],
            f"a merged GB with {given.learners[0]} learners",
            less_is_better=True,
        )
        for row in rows
        if row["learners"] != given.learners[0]
    }
    write_report(given.json, "capacity", ratios, {"cases": rows})


if __name__ == "__main__":
    main()
