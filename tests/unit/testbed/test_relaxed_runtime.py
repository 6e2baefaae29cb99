"""A container requests nothing that a host without CAP_SYS_RESOURCE cannot give; the rest is unchanged."""

import json
from pathlib import Path

import pytest

from testbed.kind.engine import lacks_sys_resource
from testbed.kind.relaxed_runtime import relax, relaxed

PROCESS = {
    "args": ["sh"],
    "capabilities": {"bounding": ["CAP_CHOWN", "CAP_SYS_RESOURCE"], "ambient": None},
    "oomScoreAdj": -999,
    "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 1, "soft": 1}],
}
RELAXED = {"args": ["sh"], "capabilities": {"bounding": ["CAP_CHOWN"], "ambient": []}, "oomScoreAdj": 0}


def test_what_does_not_stays() -> None:
    plain = {"args": ["sh"], "oomScoreAdj": 500}
    assert relaxed(plain) == plain


@pytest.mark.parametrize("verb", ["create", "run"])
def test_a_container_is_described_in_its_bundle(tmp_path: Path, verb: str) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"ociVersion": "1.0.2", "process": PROCESS}))
    relax(["--log", "x", verb, "--bundle", str(tmp_path), "name"])
    assert json.loads(config.read_text()) == {"ociVersion": "1.0.2", "process": RELAXED}


@pytest.mark.parametrize("flag", [["--process", "{}"], ["--process={}"], ["-p", "{}"]])
def test_a_further_process_is_described_in_its_file(tmp_path: Path, flag: list[str]) -> None:
    process = tmp_path / "process.json"
    process.write_text(json.dumps(PROCESS))
    relax(["exec", *(word.format(process) for word in flag), "name"])
    assert json.loads(process.read_text()) == RELAXED


def test_other_commands_change_nothing(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text("{}")
    relax(["delete", "--bundle", str(tmp_path), "name"])
    assert config.read_text() == "{}"


@pytest.mark.parametrize(("bounding", "lacks"), [("000001ffffffffff", False), ("000001fffeffffff", True)])
def test_the_capability_is_read_from_the_bounding_set(bounding: str, lacks: bool) -> None:
    assert lacks_sys_resource(f"Name:\tsh\nCapEff:\t0000000000000000\nCapBnd:\t{bounding}\n") is lacks
