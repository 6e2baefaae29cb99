import json
import math
from pathlib import Path
from typing import Any

import pytest

from diloco.cli.main import execute

JOB = """
apiVersion: diloco.dev/v1alpha1
kind: DiLoCoJob
metadata: {name: planned}
spec:
  model: {builtin: {preset: nano}}
  data: {text: {}}
  training: {tokens: 1_000_000}
  regions:
  - {name: east, pools: [{name: new, learners: 2}]}
  - {name: west, pools: [{name: old, learners: 2}]}
"""


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wide terminal, as lines break elsewhere in a narrow one."""
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def job(tmp_path: Path) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return str(path)


FITS = (
    "planned  fits",
    "  Outer optimizer: learning rate 1, momentum 0 (Auto: expected merges of each fragment: 5; extrapolated",
    "820 k parameters in 24 fragments, the largest ",
    "100 Mbit/s",
    "the syncer's own link is unlimited (--link syncer=RATE)",
    "these links carry it",
)
DOES_NOT_FIT = (
    "planned  does not fit: LinkTooThin",
    "too late",
    "Remedies, each enough alone:",
    "sync.downlink: ",
    "Mbit/s on the link west",
    "Data-parallel would move 4.92 MB a step each way",
)
WITHOUT_STEPS = ("planned  needs step times (--step)", "It fits with inner steps of ", "LinkTooThin", "Fits")


@pytest.mark.parametrize(
    ("arguments", "code", "kind", "parts"),
    [
        (["--link", "*=100Mbit/s,80ms", "--step", "*=0.5"], 0, "Fits", FITS),
        (["--link", "west=2Mbit/s", "--step", "*=0.5"], 5, "LinkTooThin", DOES_NOT_FIT),
        (["--link", "*=2Mbit/s,20ms"], 5, "StepTimeUnknown", WITHOUT_STEPS),
    ],
    ids=["fits", "does not fit", "without step times"],
)
def test_the_verdict_is_told_to_people_and_programs_with_its_exit_code(
    job: str, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, *, kind: str, parts: tuple[str, ...]
) -> None:
    assert execute(["plan", job, *arguments]) == code
    told = capsys.readouterr().out
    assert told.startswith(f"{parts[0]}\n")
    assert [part for part in parts if part not in told and part not in " ".join(told.split())] == []
    assert execute(["plan", job, *arguments, "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    assert (document["kind"], document["fits"]) == (kind, code == 0)


def test_a_world_file_says_what_flags_say_and_is_refused_in_one_line(
    job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = tmp_path / "world.yaml"
    world.write_text("regions: {'*': {link: 100Mbit/s, roundTripSeconds: 0.08, pools: {'*': {stepSeconds: 0.5}}}}")
    assert execute(["plan", job, "--world", str(world), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert execute(["plan", job, "--link", "*=100Mbit/s,80ms", "--step", "*=0.5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == told
    assert execute(["plan", job, "--world", str(world), "--link", "west=2Mbit/s", "--json"]) == 5
    world.write_text("regions:\n  est: {}\n")
    capsys.readouterr()
    assert execute(["plan", job, "--world", str(world)]) == 2
    assert capsys.readouterr().err == (
        f"diloco: {world}:2: regions.est: is not a region of the job; use east, west, '*'\n"
    )


OWN = JOB.replace("builtin: {preset: nano}", "entrypoint: ENTRYPOINT").replace(
    "regions:", "sync: {fragments: 2}\n  regions:"
)


@pytest.mark.parametrize(
    ("entrypoint", "arguments", "parameters", "largest"),
    [
        ("tests.support.entrypoints:tiny_model", [], 257 * 8 + 8 * 8 + 8, 257 * 8),
        ("mine:make", ["--parameters", "1000"], 1000, 500),
    ],
)
def test_a_model_of_ones_own_is_planned_by_its_shapes_or_its_size(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    entrypoint: str,
    arguments: list[str],
    *,
    parameters: int,
    largest: int,
) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(OWN.replace("ENTRYPOINT", entrypoint))
    execute(["plan", str(path), "--json", *arguments])
    told = json.loads(capsys.readouterr().out)
    assert (told["model"]["parameters"], told["model"]["largest_fragment"]) == (parameters, largest)
    frozen_bytes = 0 if arguments else 8 * 4
    assert told["memory"]["device_bytes"] == 5 * 4 * parameters + frozen_bytes
    assert ("fragments of equal size (--parameters)" in told["assumed"]) == bool(arguments)


def test_a_device_that_is_too_small_has_the_exit_code_of_what_does_not_fit(
    job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["plan", job, "--link", "*=100Mbit/s,80ms", "--step", "*=0.5", "--json", "--device-memory"]
    assert [execute([*arguments, size]) for size in ("1GiB", "1MiB")] == [0, 5]
    assert '"fits": false' in capsys.readouterr().out


def test_the_largest_micro_batch_that_fits_a_device_is_said(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", job, "--link", "*=100Mbit/s,80ms", "--step", "*=0.5"]

    def memory(size: str, *more: str) -> dict[str, Any]:
        execute([*arguments, "--json", "--device-memory", size, *more])
        found: dict[str, Any] = json.loads(capsys.readouterr().out)["memory"]
        return found

    whole = memory("1GiB")
    of_one = whole["passes"]["activation_bytes"] / whole["passes"]["sequences"]
    small = f"{math.ceil((whole['device_bytes'] + 3.5 * of_one) / 2**20)}MiB"
    assert memory(small)["sequences_that_fit"] == 3
    assert execute([*arguments, "--device-memory", small]) == 5
    assert "use microBatchSize 3, activationCheckpointing," in " ".join(capsys.readouterr().out.split())
    for size, code in ((3, 0), (4, 5)):
        Path(job).write_text(JOB.replace("tokens: 1_000_000", f"tokens: 1_000_000, microBatchSize: {size}"))
        assert execute([*arguments, "--device-memory", small]) == code


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "diloco: --parameters: is missing, and model.entrypoint: cannot import mine ("),
        (["--hf", "x", "--parameters", "1B"], "diloco: --parameters: 1B is not needed with --hf; remove it"),
        (["--hf", "nowhere"], "diloco: --hf: model.huggingface.path: nowhere has no config.json"),
    ],
)
def test_a_size_that_cannot_be_found_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(OWN.replace("ENTRYPOINT", "mine:make"))
    assert execute(["plan", str(path), *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(told)
