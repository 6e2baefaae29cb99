"""What a released version wrote is read: its tape replays, its syncer and learner resume from their checkpoints."""

import json
import shutil
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from diloco import __version__
from diloco.core.engine.engine import Engine
from diloco.core.engine.events import Event
from diloco.core.engine.options import EngineOptions
from diloco.syncer.disk.directory import SyncerDirectory
from diloco.syncer.prepare import StartState, prepare
from diloco.syncer.replay import replay
from diloco.syncer.store import digest_of
from diloco.tape.reader import TapeEntry, TapeReader
from diloco.tape.segments import find_tapes
from tests.support.files_of_version import STEPS, TRAINING, job_of, learners_store, trainer_in, write_files
from tests.support.golden import GOLDEN, VERSIONS, rewrites_golden

pytestmark = pytest.mark.usefixtures("one_torch_thread")

LIMIT_BYTES = 200_000


@pytest.fixture(scope="module", autouse=True)
def _rewritten(tmp_path_factory: pytest.TempPathFactory) -> None:
    if rewrites_golden() and __version__ in VERSIONS:
        write_files(GOLDEN / __version__, tmp_path_factory.mktemp("scratch"))


@pytest.fixture(params=VERSIONS)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a version's files that the test may change."""
    return Path(shutil.copytree(GOLDEN / request.param, tmp_path / "kept"))


def expected_in(kept: Path) -> dict[str, Any]:
    expected: dict[str, Any] = json.loads((kept / "expected.json").read_text())
    return expected


def resumed(kept: Path) -> tuple[StartState, Engine]:
    """A syncer that begins with the checkpoint."""
    job = job_of()
    state = prepare(job, kept / "syncer" / "checkpoints")
    return state, Engine(EngineOptions.from_job(job, state.layout), 2, state.engine)


def test_the_tape_replays(kept: Path) -> None:
    report = replay(kept, explain=True)
    assert report.ok, report.problems
    (epoch,) = report.epochs
    assert epoch.merges == sum(expected_in(kept)["versions_at_the_end"])
    assert len(list(report.explanation)) > epoch.merges


def test_the_tape_has_several_segments_and_every_kind_of_event(kept: Path) -> None:
    (files,) = find_tapes(kept / "syncer" / "tape")
    entries = [entry for entry in TapeReader(files) if isinstance(entry, TapeEntry)]
    assert {type(entry.event) for entry in entries} == set(get_args(Event))
    assert entries[-1].seq == expected_in(kept)["lines"]
    for path in files.segments[:2]:
        path.unlink()
    report = replay(kept)
    assert report.ok, report.problems
    assert report.epochs[0].first_seq > 0


def test_the_syncer_resumes_from_the_checkpoint(kept: Path) -> None:
    expected = expected_in(kept)
    state, engine = resumed(kept)
    assert list(engine.versions) == list(state.store.versions) == expected["versions"]
    assert list(engine.fragment_tokens) == expected["fragment_tokens"]
    found = [state.store.current(fragment.index).parameters for fragment in state.layout.fragments]
    assert [digest_of(values).hex() for values in found] == expected["parameters"]
    assert all(state.store.residual(fragment.index) is not None for fragment in state.layout.fragments)
    learners = {one.id: [one.steps, one.restarts, repr(one.loss)] for one in engine.view(0.0).learners}
    assert learners == expected["learners"]


def test_the_syncers_directory_goes_on(kept: Path) -> None:
    with SyncerDirectory(kept / "syncer") as directory:
        assert directory.training() == TRAINING
        assert directory.begin_epoch() == 2


def test_the_learner_resumes_from_its_checkpoint(kept: Path) -> None:
    trainer = trainer_in(kept)
    found = learners_store(kept, trainer).load()
    assert found is not None
    assert found.training == TRAINING
    assert all(torch.equal(one.values, torch.arange(3.0)) for one in found.residuals.values())
    trainer.load_state(found.state)
    assert (trainer.steps, trainer.tokens, trainer.data_position) == (STEPS, STEPS * 64, STEPS * 4)
    trainer.step(0.0)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_files_are_small(version: str) -> None:
    assert sum(path.stat().st_size for path in (GOLDEN / version).rglob("*") if path.is_file()) < LIMIT_BYTES
