"""A job whose plan is made: pools that differ, and one without learners."""

from pathlib import Path
from typing import Any

from diloco.spec import DiLoCoJob
from tests.support.small_job import named_job, small_job

REGIONS = [
    {"name": "east", "pools": [{"name": "new", "learners": 2}, {"name": "spare", "learners": 0}]},
    {"name": "west", "pools": [{"name": "old", "learners": 1, "batchSize": 8}, {"name": "new", "learners": 1}]},
]


def job(**changes: Any) -> DiLoCoJob:
    defaults: dict[str, Any] = {"regions": REGIONS, "sync": {"fragments": 24, "interval": 24}}
    spec = small_job(Path("text"), **(defaults | changes))
    return named_job("planned", spec)
