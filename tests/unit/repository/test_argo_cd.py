"""The health check for Argo CD that the docs give, run by a Lua interpreter on statuses of jobs."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

PAGE = Path(__file__).parents[3] / "docs/how-to/tasks.md"
_NAMES = ("lua5.4", "lua5.3", "lua5.1", "lua")


@pytest.fixture(scope="module")
def lua() -> str:
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.skip("no Lua on PATH: apt install lua5.4")
    return found


def health(lua: str, status: dict[str, Any] | None) -> list[str]:
    """Status and message that Argo CD shows of a job."""
    (block,) = (one for one in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL) if "health.diloco" in one)
    check = yaml.safe_load(block)["data"]["resource.customizations.health.diloco.dev_DiLoCoJob"]
    job = literal({} if status is None else {"status": status})
    program = (
        f"local obj = {job}\nlocal found = (function()\n{check}\nend)()\nprint(found.status)\nprint(found.message)"
    )
    done = subprocess.run([lua, "-"], input=program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def literal(value: Any) -> str:
    """The same in Lua."""
    if isinstance(value, dict):
        return "{" + ", ".join(f'["{key}"] = {literal(inner)}' for key, inner in value.items()) + "}"
    return "{" + ", ".join(map(literal, value)) + "}" if isinstance(value, list) else f'"{value}"'


def conditions(**true: str) -> dict[str, Any]:
    """A status with each condition, of which these are True."""
    kinds = ("Ready", "Progressing", "Degraded", "Suspended", "Complete", "Failed")
    return {
        "conditions": [
            {"type": kind, "status": "True" if kind in true else "False", "reason": true.get(kind, "AsExpected")}
            for kind in kinds
        ]
    }


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        (None, ["Progressing", "no status yet"]),
        ({}, ["Progressing", "no status yet"]),
        (conditions(Progressing="Starting"), ["Progressing", "no status yet"]),
        (conditions(Ready="Training", Progressing="Training"), ["Healthy", "Training: "]),
        (conditions(Ready="Training", Degraded="Unschedulable"), ["Degraded", "Unschedulable: "]),
        (conditions(Suspended="Suspended"), ["Suspended", "Suspended: "]),
        (conditions(Ready="BudgetReached", Complete="BudgetReached"), ["Healthy", "BudgetReached: "]),
        (conditions(Failed="DeadlineExceeded"), ["Degraded", "DeadlineExceeded: "]),
    ],
)
def test_the_health_check_for_argo_cd_follows_the_conditions(
    lua: str, status: dict[str, Any] | None, shown: list[str]
) -> None:
    assert health(lua, status) == shown
