"""A job begins from the newest backup of its own training that is whole: never from another job's."""

import shutil
from pathlib import Path

import pytest

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


def test_a_restored_job_is_restored_again(tmp_path: Path) -> None:
    """A damaged backup of the directory that was lost last gives way to one that it went on from."""
    Trained(tmp_path / "first").backed_up(1.0, step=900)
    second = Trained(tmp_path / "second", writer="e" * 16).backed_up(2.0, step=900)
    assert value_of(begun(job_of(), tmp_path)) == 2.0
    shutil.rmtree(tmp_path / "begun")
    (tmp_path / "kept" / second.name / "00001.safetensors").unlink()
    assert value_of(begun(job_of(), tmp_path)) == 1.0


@pytest.mark.parametrize("begins", ["Resume", "Weights"])
def test_a_damaged_training_does_not_give_way_to_another(tmp_path: Path, begins: str) -> None:
    """As in a folder into which another training's backups were copied."""
    left = Trained(tmp_path / "left").backed_up(1.0, step=4)
    newest = Trained(tmp_path / "anew", training=ANEW, store=folder_store(tmp_path / "aside")).backed_up(2.0)
    shutil.copytree(tmp_path / "aside", tmp_path / "kept", dirs_exist_ok=True)
    (tmp_path / "kept" / newest.name / "00001.safetensors").unlink()
    told = f"of training {ANEW}; use the name of another backup .spec.initFrom.backup., or another"
    with pytest.raises(SyncerError, match=told):
        begun(job_of(), tmp_path, type=begins)
    assert value_of(begun(job_of(), tmp_path, type=begins, backup=left.name)) == 1.0


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
