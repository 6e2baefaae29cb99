"""The tables of docs/how-to/scale.md are what ``diloco plan`` computes for these jobs."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from diloco.local.view.units import bytes_text, short_duration_text
from diloco.plan.plan import Plan, make_plan
from diloco.plan.world import read_world
from tests.support.small_job import named_job, small_job

PAGE = Path(__file__).resolve().parents[3] / "docs/how-to/scale.md"
LEARNERS, SEQUENCE, FLOPS = 8, 4096, 4e14
WIDE, NARROW = ("BF16", "F32"), ("Int4", "Int8")


class Row(NamedTuple):
    """What the page chooses for a model."""

    name: str
    parameters: float
    processes: int
    nodes: int
    batch_size: int
    encodings: tuple[str, str]

    @property
    def step_seconds(self) -> float:
        return 6 * self.parameters * self.batch_size * SEQUENCE / (self.processes * self.nodes * FLOPS)

    def planned(self, *links: str) -> Plan:
        pool: dict[str, Any] = {"name": "a", "learners": LEARNERS, "batchSize": self.batch_size}
        pool |= {"processesPerNode": self.processes, "nodesPerLearner": self.nodes}
        spec = small_job(
            model={"entrypoint": "mine:make"},
            regions=[{"name": "here", "pools": [pool]}],
            training={"tokens": 10**12, "sequenceLength": SEQUENCE},
            sync={"compression": self.encodings[0], "downlink": self.encodings[1]},
            syncer={"storage": {"size": "10Ti"}},
        )
        world = read_world(spec, links, [f"*={self.step_seconds}"])
        return make_plan(named_job("scale", spec), world, int(self.parameters))


ROWS = (
    Row("1B", 1e9, 1, 1, 64, WIDE),
    Row("8B", 8e9, 8, 1, 128, NARROW),
    Row("28B", 28e9, 8, 2, 256, NARROW),
    Row("70B", 70e9, 8, 4, 256, NARROW),
)


def chosen(row: Row) -> str:
    """A line of the table of choices."""
    wide, narrow = (row._replace(encodings=one).planned().syncer.limits[0].step_seconds for one in (WIDE, NARROW))
    cells = [f"{row.processes} x {row.nodes}", str(row.batch_size), short_duration_text(row.step_seconds)]
    cells += [short_duration_text(wide), short_duration_text(narrow), ", ".join(row.encodings)]
    return f"| {row.name} | {' | '.join(cells)} |"


def costs(row: Row) -> str:
    """A line of the table of costs."""
    made = row.planned()
    memory, load = made.memory, made.syncer
    assert load.received_bytes_per_second is not None
    assert load.sent_bytes_per_second is not None
    sizes = (memory.device_bytes, memory.host_bytes, memory.syncer_bytes, memory.disk_bytes)
    rates = (load.received_bytes_per_second, load.sent_bytes_per_second)
    cells = [*map(bytes_text, sizes), *(f"{bytes_text(one)}/s" for one in rates), f"{load.cores:.2g}"]
    return f"| {row.name} | {' | '.join(cells)} |"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_page_shows_what_is_planned(row: Row) -> None:
    made = row.planned("syncer=10Gbit/s")
    assert made.fits
    assert made.syncer.enough
    assert made.memory.device_bytes < 80e9
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    assert [line for line in (chosen(row), costs(row)) if line not in lines] == []
