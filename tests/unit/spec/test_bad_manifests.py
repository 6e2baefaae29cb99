"""Every way a manifest can be wrong, and its one-line error."""

import pytest

from diloco.spec import SpecError
from diloco.spec.load import job_from
from tests.support.bad_manifest_lines import CASES
from tests.support.job_manifests import GOOD, changed


def test_the_manifest_these_cases_change_is_good() -> None:
    assert len(job_from(GOOD).spec.learner_ids) == 4


@pytest.mark.parametrize(
    ("changes", "line"), CASES, ids=[f"{n}-{line.partition(':')[0]}" for n, (_, line) in enumerate(CASES)]
)
def test_a_bad_manifest_is_refused_in_one_line(changes: dict[str, object], line: str) -> None:
    with pytest.raises(SpecError) as caught:
        job_from(changed(changes))
    assert str(caught.value) == line


def test_every_problem_is_shown_at_once_and_in_order() -> None:
    manifest = changed({"spec.sync.quorum": 5, "spec.sync.overlap": 30, "spec.regions.1.name": "us-east"})
    with pytest.raises(SpecError) as caught:
        job_from(manifest)
    assert [problem.path for problem in caught.value.problems] == [
        "spec.sync.overlap",
        "spec.sync.quorum",
        "spec.regions[1].name",
    ]


def test_a_bad_item_does_not_make_its_list_too_short() -> None:
    with pytest.raises(SpecError) as caught:
        job_from(changed({"spec.regions": [{"name": "here", "pools": [{"name": "cpu", "learners": -1}]}]}))
    assert [problem.path for problem in caught.value.problems] == ["spec.regions[0].pools[0].learners"]


@pytest.mark.parametrize("document", [None, [], "text", 5])
def test_a_manifest_that_is_no_mapping_is_refused(document: object) -> None:
    with pytest.raises(
        SpecError, match=r"^job\.yaml: is not a mapping; begin with apiVersion, kind, metadata and spec$"
    ):
        job_from(document, "job.yaml")
