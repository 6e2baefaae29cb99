"""A job begins from the backup that is meant, or it does not begin: never from another job's or from a mistake."""

import shutil
from pathlib import Path

import pytest

from diloco.runtime.process.exits import EXIT_BAD_INPUT
from diloco.spec import DiLoCoJob
from diloco.spec.backup import InitFrom
from diloco.syncer.errors import SyncerError
from diloco.syncer.prepare import StartState, prepare
from tests.support.backups import TRAINING, Trained, beginning_from, folder_store, in_namespace, job_of, value_of

ANEW = "f" * 16
"""Id of a training that began from zero."""


def begun(job: DiLoCoJob, tmp_path: Path, **changes: object) -> StartState:
    begins = InitFrom.model_validate({"url": str(tmp_path / "kept"), **changes})
    return prepare(beginning_from(job, begins), tmp_path / "begun" / "checkpoints")


@pytest.mark.parametrize("begins", ["Resume", "Weights"])
@pytest.mark.parametrize(("training", "writer"), [(ANEW, ANEW), (TRAINING, "e" * 16)], ids=["mistake", "copy"])
def test_the_newest_that_is_not_as_far_is_not_taken(tmp_path: Path, training: str, writer: str, begins: str) -> None:
    lost = Trained(tmp_path / "lost").backed_up(1.0, step=900)
    newest = Trained(tmp_path / "other", training=training, writer=writer).backed_up(2.0, step=4)
    with pytest.raises(SyncerError) as told:
        begun(job_of(), tmp_path, type=begins)
    assert str(told.value) == (
        f"spec.initFrom.backup: is missing; {tmp_path / 'kept'} has several trainings or copies of one, and the newest "
        f"has fewer merges than another: {training} (step 4, newest backup {newest.name}), {TRAINING} (step 900, "
        f"newest backup {lost.name}); use the name of the backup to begin from"
    )
    assert told.value.exit_code == EXIT_BAD_INPUT
    assert value_of(begun(job_of(), tmp_path, type=begins, backup=lost.name)) == 1.0
    shutil.rmtree(tmp_path / "begun")
    assert value_of(begun(job_of(), tmp_path, type=begins, backup=newest.name)) == 2.0


@pytest.mark.parametrize("step", [900, 901])
def test_a_newer_training_that_is_as_far_is_taken(tmp_path: Path, step: int) -> None:
    Trained(tmp_path / "left").backed_up(1.0, step=900)
    Trained(tmp_path / "anew", training=ANEW).backed_up(2.0, step=step)
    state = begun(job_of(), tmp_path)
    assert (value_of(state), state.training) == (2.0, ANEW)


def test_a_restored_job_is_restored_again(tmp_path: Path) -> None:
    """A damaged backup of the directory that was lost last gives way to one that it went on from."""
    Trained(tmp_path / "first").backed_up(1.0, step=900)
    second = Trained(tmp_path / "second", writer="e" * 16).backed_up(2.0, step=900)
    assert value_of(begun(job_of(), tmp_path)) == 2.0
    shutil.rmtree(tmp_path / "begun")
    (tmp_path / "kept" / second.name / "00001.safetensors").unlink()
    assert value_of(begun(job_of(), tmp_path)) == 1.0


def test_many_trainings_are_listed_in_one_line(tmp_path: Path) -> None:
    for index in range(7):
        Trained(tmp_path / str(index), training=f"{index:016x}").backed_up(1.0, step=100 - index)
    with pytest.raises(SyncerError) as told:
        begun(job_of(), tmp_path)
    text = str(told.value)
    assert f"{6:016x} (step 94, " in text
    assert f"{0:016x} (step 100, " in text
    assert " and 2 more; use the name" in text
    assert "\n" not in text


def test_steps_of_another_model_are_not_compared(tmp_path: Path) -> None:
    Trained(tmp_path / "other", job_of(sync={"fragments": 3})).backed_up(1.0, step=900)
    Trained(tmp_path / "anew", training=ANEW).backed_up(2.0, step=4)
    assert value_of(begun(job_of(), tmp_path)) == 2.0


def test_a_damaged_training_does_not_give_way_to_another(tmp_path: Path) -> None:
    Trained(tmp_path / "left").backed_up(1.0, step=4)
    newest = Trained(tmp_path / "anew", training=ANEW).backed_up(2.0, step=900)
    (tmp_path / "kept" / newest.name / "00001.safetensors").unlink()
    told = f"of a checkpoint of training {ANEW}; use the name of another backup .spec.initFrom.backup., or another"
    with pytest.raises(SyncerError, match=told):
        begun(job_of(), tmp_path)


def test_a_job_of_another_namespace_is_refused_unless_named(tmp_path: Path) -> None:
    theirs = Trained(tmp_path / "other", in_namespace("staging")).backed_up(1.0)
    with pytest.raises(SyncerError) as told:
        begun(in_namespace("prod"), tmp_path)
    assert str(told.value) == (
        f"spec.initFrom.url: backup {theirs.name} of {tmp_path / 'kept'} is of job 'made' in namespace 'staging', not "
        "of 'made' in namespace 'prod'; use a folder of this job, or name the backup (spec.initFrom.backup) to go on "
        "with that training here, or spec.initFrom.type Weights to begin from its parameters"
    )
    state = begun(in_namespace("prod"), tmp_path, backup=theirs.name)
    assert (value_of(state), state.training) == (1.0, TRAINING)
    shutil.rmtree(tmp_path / "begun")
    assert begun(in_namespace("prod"), tmp_path, type="Weights").training == ""


def test_a_named_backup_of_another_job_is_refused(tmp_path: Path) -> None:
    theirs = Trained(tmp_path / "other", in_namespace("prod", job_of("other"))).backed_up(1.0)
    with pytest.raises(SyncerError, match="is of job 'other' in namespace 'prod', not of 'made' in namespace 'prod'"):
        begun(in_namespace("prod"), tmp_path, backup=theirs.name)


@pytest.mark.parametrize("training", [TRAINING, ANEW])
def test_its_own_backups_are_found_among_others(tmp_path: Path, training: str) -> None:
    """As in a folder that two jobs have shared by mistake."""
    ours = Trained(tmp_path / "first", in_namespace("prod"))
    ours.backed_up(1.0, step=4)
    aside = folder_store(tmp_path / "aside")
    theirs = Trained(tmp_path / "other", in_namespace("staging"), training, "e" * 16, aside)
    for step in (5, 6):
        theirs.backed_up(2.0, step=step)
    shutil.copytree(tmp_path / "aside", tmp_path / "kept", dirs_exist_ok=True)
    state = begun(ours.job, tmp_path)
    assert (value_of(state), state.training) == (1.0, TRAINING)
