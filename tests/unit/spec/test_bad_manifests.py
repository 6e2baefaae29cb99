from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest

from diloco.spec import SpecError
from diloco.spec.reading.load import job_from
from tests.support.bad_manifests import CASES, Bad
from tests.support.job_manifests import EVERY_FIELD, GOOD, changed


def test_the_manifest_these_cases_change_is_good() -> None:
    assert len(job_from(GOOD).spec.learner_ids) == 4


@pytest.mark.parametrize(
    "bad", [pytest.param(bad, id=f"{n}-{bad.line.partition(':')[0]}") for n, bad in enumerate(CASES)]
)
def test_a_bad_manifest_is_refused_in_one_line(bad: Bad) -> None:
    with pytest.raises(SpecError) as caught:
        job_from(changed(bad.changes))
    assert str(caught.value) == bad.line


def test_every_problem_is_shown_at_once_and_in_order() -> None:
    manifest = changed({"spec.sync.quorum": 5, "spec.sync.overlap": 30, "spec.regions.1.pools.0.minimumLearners": 2})
    with pytest.raises(SpecError) as caught:
        job_from(manifest)
    assert [problem.path for problem in caught.value.problems] == [
        "spec.sync.overlap",
        "spec.sync.quorum",
        "spec.regions[1].pools[0].minimumLearners",
    ]


def test_a_rule_is_checked_if_the_fields_that_it_reads_are_right() -> None:
    wrong = {"spec.training.tokens": "5M", "spec.sync.interval": 0, "spec.regions.0.pools.0.env": [{}]}
    not_known = {"spec.training.evaluation.everyTokens": 10**6, "spec.sync.overlap": 30}
    across = {"spec.sync.quorum": 5, "spec.regions.1.pools.0.minimumLearners": 2}
    with pytest.raises(SpecError) as caught:
        job_from(changed({**wrong, **not_known, **across}))
    assert [problem.path for problem in caught.value.problems] == [
        "spec.training.tokens",
        "spec.sync.interval",
        "spec.regions[0].pools[0].env[0].name",
        "spec.sync.quorum",
        "spec.regions[1].pools[0].minimumLearners",
    ]


@pytest.mark.parametrize(
    ("wrong", "across"),
    [
        ({"spec.sync.intervall": 48}, {"spec.sync.overlap": 30}),
        ({"spec.regions.0.pools.0.excludedIndices": [-1]}, {"spec.sync.quorum": 5}),
        ({"spec.regions.0.pools.1": "old"}, {"spec.sync.quorum": 5}),
    ],
    ids=["a field beside it does not exist", "an item is wrong", "an item is no mapping"],
)
def test_a_rule_does_not_guess_what_it_cannot_read(wrong: dict[str, object], across: dict[str, object]) -> None:
    with pytest.raises(SpecError) as caught:
        job_from(changed({**wrong, **across}))
    assert len(caught.value.problems) == 1


def test_no_wrong_value_ends_in_anything_but_its_problem() -> None:
    assert EVERY_FIELD["spec"]["regions"][0]["pools"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1
    for place in _places(EVERY_FIELD, ()):
        manifest = deepcopy(EVERY_FIELD)
        node: Any = manifest
        for part in place[:-1]:
            node = node[part]
        node[place[-1]] = [[]]
        # Values that may be anything, as arguments of code, are right.
        with suppress(SpecError):
            job_from(manifest)


def _places(value: object, at: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in parts:
        yield (*at, key)
        yield from _places(inner, (*at, key))


def test_a_bad_item_does_not_make_its_list_too_short() -> None:
    with pytest.raises(SpecError) as caught:
        job_from(changed({"spec.regions": [{"name": "here", "pools": [{"name": "cpu", "learners": -1}]}]}))
    assert [problem.path for problem in caught.value.problems] == ["spec.regions[0].pools[0].learners"]
