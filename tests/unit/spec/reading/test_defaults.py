"""Defaults that an operator passes on: filled in where this version knows the field, and never an error."""

import json
from typing import Any

import pytest
import yaml

from diloco.spec import parse_job
from diloco.spec.reading.defaults import ANNOTATION, left_out
from tests.support.small_manifest import SMALL_MANIFEST


def read(passed: Any, **spec: Any) -> Any:
    manifest = yaml.safe_load(SMALL_MANIFEST)
    manifest["metadata"]["annotations"] = {ANNOTATION: passed if isinstance(passed, str) else json.dumps(passed)}
    manifest["spec"].update(spec)
    return parse_job(yaml.safe_dump(manifest)).spec


def test_the_operators_default_counts_and_not_this_versions() -> None:
    passed = {"spec.sync": {"leaseSeconds": 33}, "spec.training.optimizer": {"learningRate": 0.5}}
    assert read(passed).sync.lease_seconds == 33
    assert read(passed).training.optimizer.learning_rate != 0.5, "no such section was passed"
    assert read({**passed, "spec.training": {"optimizer": {}}}).training.optimizer.learning_rate == 0.5


def test_what_the_manifest_says_counts_more_than_a_default() -> None:
    assert read({"spec.sync": {"interval": 96}}, sync={"interval": 12}).sync.interval == 12


def test_each_pool_is_given_the_default() -> None:
    regions = [{"name": "a", "pools": [{"name": "one"}, {"name": "two", "learners": 3}]}]
    read_regions = read({"spec.regions[].pools[]": {"learners": 2}}, regions=regions).regions
    assert [pool.learners for pool in read_regions[0].pools] == [2, 3]


@pytest.mark.parametrize(
    "passed",
    [
        {"spec": {"newField": 1}, "spec.sync.newSection": {"x": 1}, "spec.new[].deep": {"x": 1}},
        {"": {"x": 1}, "..": {}, "spec.regions": {"name": "x"}, "metadata[][]": {"name": "x"}},
        ["spec"],
        {"spec": 1},
        "no JSON",
    ],
)
def test_what_this_version_does_not_know_is_left_out(passed: Any) -> None:
    assert read(passed) == read({})


def test_a_section_that_differs_in_one_of_two_places_is_complete_in_both() -> None:
    full = {"pools": [{"room": {"size": 1, "mode": "A"}}, {"room": {"size": 2, "mode": "A"}}, {"room": None}]}
    given = {"pools": [{}, {"room": {"size": 2}}, {}]}
    assert left_out(full, given) == {
        "spec.pools[]": {"room": {}},
        "spec.pools[].room": {"size": 1, "mode": "A"},
    }
