"""A manifest that changes while the syncer runs."""

import logging
import os
from pathlib import Path

import pytest

from diloco.core.engine.events import BudgetChanged, LearnersPlanned, PoolMinimum, PoolTerms
from diloco.spec import load_job
from diloco.syncer.job_file import JobFile
from tests.support.small_manifest import SMALL_MANIFEST


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """As a mounted ConfigMap has it: a link to a link, which is swapped."""
    (tmp_path / "..1").mkdir()
    (tmp_path / "..1" / "job.yaml").write_text(SMALL_MANIFEST)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "job.yaml").symlink_to("..data/job.yaml")
    return tmp_path / "job.yaml"


def swap(path: Path, text: str) -> None:
    version = f"..{len(list(path.parent.iterdir()))}"
    (path.parent / version).mkdir()
    (path.parent / version / "job.yaml").write_text(text)
    (path.parent / "..new").symlink_to(version)
    (path.parent / "..new").replace(path.parent / "..data")


def changed(before: str, after: str) -> str:
    assert before in SMALL_MANIFEST
    return SMALL_MANIFEST.replace(before, after)


def test_a_file_that_does_not_change_says_nothing(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = JobFile(path, load_job(path))
    assert [file.poll(), file.poll()] == [[], []]
    swap(path, SMALL_MANIFEST)
    os.utime(path)
    assert file.poll() == []
    assert caplog.records == []


A = PoolTerms("east/a", batch=2)
B = PoolTerms("east/b", batch=1)


def test_a_scaled_pool_is_a_new_plan_once(path: Path) -> None:
    file = JobFile(path, load_job(path))
    swap(path, changed("learners: 2", "learners: 3"))
    assert file.poll() == [LearnersPlanned(("east/a/0", "east/a/1", "east/a/2"), ("east/a",), terms=(A,))]
    assert file.poll() == []
    swap(path, SMALL_MANIFEST)
    assert file.poll() == [LearnersPlanned(("east/a/0", "east/a/1"), ("east/a",), terms=(A,))]


def test_a_changed_minimum_is_a_new_plan_once(path: Path) -> None:
    file = JobFile(path, load_job(path))
    swap(path, changed("learners: 2", "learners: 2, minimumLearners: 1"))
    assert file.poll() == [LearnersPlanned(("east/a/0", "east/a/1"), ("east/a",), (PoolMinimum("east/a", 1),), (A,))]
    assert file.poll() == []
    # The same as none.
    swap(path, changed("learners: 2", "learners: 2, minimumLearners: 2"))
    assert file.poll() == [LearnersPlanned(("east/a/0", "east/a/1"), ("east/a",), terms=(A,))]
    swap(path, SMALL_MANIFEST)
    assert file.poll() == []


def test_a_changed_speed_is_a_new_plan_once(path: Path) -> None:
    file = JobFile(path, load_job(path))
    swap(path, changed("learners: 2", "learners: 2, speed: 8"))
    assert file.poll() == [LearnersPlanned(("east/a/0", "east/a/1"), ("east/a",), terms=(PoolTerms("east/a", 2, 8.0),))]
    assert file.poll() == []


def test_pools_that_are_added_and_removed_are_a_new_plan(path: Path) -> None:
    file = JobFile(path, load_job(path))
    swap(path, changed("{name: a, learners: 2}", "{name: b, batchSize: 1}, {name: a, learners: 2}"))
    assert file.poll() == [LearnersPlanned(("east/b/0", "east/a/0", "east/a/1"), ("east/b", "east/a"), terms=(B, A))]
    assert list(file.job.spec.pools) == ["east/b", "east/a"]
    swap(path, changed("{name: a, learners: 2}", "{name: b, batchSize: 1}"))
    assert file.poll() == [LearnersPlanned(("east/b/0",), ("east/b",), terms=(B,))]
    swap(path, changed("{name: a, learners: 2}", "{name: b, learners: 0}, {name: c}"))
    assert file.poll() == [], "the batch size of b has changed"


@pytest.mark.parametrize("tokens", [2000, 500])
def test_a_changed_budget_is_an_event_once(path: Path, tokens: int) -> None:
    file = JobFile(path, load_job(path))
    swap(path, changed("tokens: 1000", f"tokens: {tokens}"))
    assert [file.poll(), file.poll()] == [[BudgetChanged(tokens, tokens // 10)], []]


def test_budget_and_pools_that_change_together_are_two_events(path: Path) -> None:
    file = JobFile(path, load_job(path))
    swap(path, changed("tokens: 1000", "tokens: 2000").replace("learners: 2", "learners: 1"))
    assert [type(event) for event in file.poll()] == [LearnersPlanned, BudgetChanged]


@pytest.mark.parametrize(
    ("before", "after", "field"),
    [
        ("interval: 4", "interval: 8", "spec.sync.interval"),
        ("{builtin: {preset: pico}}", "{entrypoint: mine:model}", "spec.model.builtin"),
        ("overlap: 1", "overlap: 1, maxStalenessSteps: 9", "spec.sync.maxStalenessSteps"),
        ("{name: a, learners: 2}", "{name: a, learners: 3, batchSize: 1}", "spec.regions.[east/a].batchSize"),
    ],
)
def test_any_other_change_is_one_line_and_changes_nothing(
    path: Path, caplog: pytest.LogCaptureFixture, before: str, after: str, field: str
) -> None:
    file = JobFile(path, load_job(path))
    swap(path, changed(before, after))
    assert [file.poll(), file.poll()] == [[], []]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"has changed in {field};" in record.getMessage()
    swap(path, changed("learners: 2", "learners: 3"))
    assert file.poll() != []


_NOT_ITS_OWN = "  activeDeadlineSeconds: 60\n  failurePolicy: {lostPods: {action: Wait}}\n"


def test_what_a_syncer_does_not_go_by_may_change(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = JobFile(path, load_job(path))
    swap(path, changed("learners: 2", "learners: 3, resources: {limits: {cpu: 2}}") + _NOT_ITS_OWN)
    (planned,) = file.poll()
    assert isinstance(planned, LearnersPlanned)
    assert len(planned.learners) == 3
    assert caplog.records == []


def test_a_file_that_is_wrong_or_gone_changes_nothing(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = JobFile(path, load_job(path))
    swap(path, changed("learners: 2", "learners: -2"))
    assert [file.poll(), file.poll()] == [[], []]
    (record,) = caplog.records
    assert record.getMessage().endswith("the job continues unchanged")
    assert "spec.regions[0].pools[0].learners" in record.getMessage()
    path.unlink()
    assert file.poll() == []
