"""What the operator reads of a syncer's ``/status`` is what syncers write there."""

from typing import get_type_hints

import pytest
from pydantic import BaseModel

from diloco.plan.fit.fit import FitKind
from diloco.spec.status.engine import EvaluationStatus, LearnerStatus
from diloco.spec.status.syncer import (
    BackupStatus,
    BytesByKind,
    CheckpointStatus,
    LinksStatus,
    LinkStatus,
    RegionBytes,
    SyncerStatus,
)
from diloco_operator.decide.causes.syncer import NO_MISFITS
from diloco_operator.decide.observed import (
    BackupReport,
    BytesReport,
    CheckpointReport,
    EvaluationReport,
    LearnerReport,
    LinkReport,
    LinksReport,
    RegionBytesReport,
    SyncerStatusView,
)
from testbed.virtual_cluster.world_syncer import THIN_LINKS, WorldSyncer
from tests.support.seen_jobs import syncer_account

WRITTEN: dict[type[BaseModel], type] = {
    LearnerReport: LearnerStatus,
    EvaluationReport: EvaluationStatus,
    BackupReport: BackupStatus,
    CheckpointReport: CheckpointStatus,
    LinkReport: LinkStatus,
    LinksReport: LinksStatus,
    BytesReport: BytesByKind,
    RegionBytesReport: RegionBytes,
    SyncerStatusView: SyncerStatus,
}
"""By the operator's model: the syncer's."""


def types_of(model: type) -> dict[str, str]:
    """Types of the fields as text, with the syncer's models in place of the operator's."""
    found = {}
    hints = get_type_hints(model)
    for name in model.model_fields if issubclass(model, BaseModel) else hints:
        annotation = hints[name]
        text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
        for read, written in WRITTEN.items():
            text = text.replace(f"{read.__module__}.{read.__name__}", f"{written.__module__}.{written.__name__}")
            text = written.__name__ if text == read.__name__ else text
        found[name] = text
    return found


@pytest.mark.parametrize(("read", "written"), WRITTEN.items(), ids=lambda model: model.__name__)
def test_each_field_the_operator_reads_is_one_that_syncers_write(read: type[BaseModel], written: type) -> None:
    fields, known = types_of(read), types_of(written)
    assert fields == {name: known.get(name) for name in fields}


def test_a_whole_account_of_a_syncer_is_read() -> None:
    account = SyncerStatus.model_validate(syncer_account(links=THIN_LINKS, quorum=2))
    view = SyncerStatusView.model_validate_json(account.model_dump_json())
    assert (view.epoch, view.phase, view.quorum, view.syncer_step, view.merged_tokens) == (1, "Training", 2, 7, 250.0)
    (learner,) = view.learners
    assert (learner.id, learner.state, learner.incarnation, learner.restarts) == ("us-west/old/0", "Training", 1, 1)


def test_only_misfits_of_the_links_are_problems() -> None:
    assert {FitKind.FITS, FitKind.STEP_TIME_UNKNOWN} == NO_MISFITS


def test_the_syncer_of_the_virtual_cluster_answers_as_a_real_one() -> None:
    syncer = WorldSyncer("two-regions", budget=1000, quorum=1, doubted_loss=9.0, links=THIN_LINKS)
    syncer.started()
    syncer.given_up, syncer.stalled, syncer.left_out = {"here/cpu/0"}, {"here/cpu/1"}, {"here/cpu/2": "its norm"}
    syncer.trains(1.0, [f"here/cpu/{index}" for index in range(4)])
    told = syncer.status()
    del told["a field of a later version"]
    whole = syncer_account()
    told["learners"] = [whole["learners"][0] | learner for learner in told["learners"]]
    told["evaluations"] = [{"tokens": 1, "seconds": 1.0, "final": False} | one for one in told["evaluations"]]
    account = SyncerStatus.model_validate(whole | told, extra="forbid")
    assert {learner.state for learner in account.learners} == {"GivenUp", "Stalled", "Training"}
