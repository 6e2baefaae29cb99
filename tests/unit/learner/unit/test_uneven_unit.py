"""A learner of three processes, of which one has fewer rows of some parameters."""

from pathlib import Path

from tests.support.units import check_alike, job_of, unit_of, write_documents


def test_three_processes_with_uneven_parts_train_as_one(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    with unit_of(3, tmp_path) as unit:
        check_alike(unit, job_of(write_documents(tmp_path / "text")))
