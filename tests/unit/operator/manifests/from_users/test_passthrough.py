"""Resources and variables that a job passes to its pods arrive; names that the operator uses are refused."""

from typing import Any

import pytest
import yaml

from diloco_operator.manifests import InvalidSpecError
from tests.support.made_objects import containers, made, templates, with_pool, with_syncer

SET, DEPLOYMENT = "StatefulSet/small--east-a", "Deployment/small-syncer"
GIVEN: dict[str, Any] = {
    "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}],
    "resources": {"requests": {"cpu": "500m"}, "limits": {"example.com/gpu": 1, "memory": "1024Mi"}},
}


def of_learner(pool: dict[str, Any]) -> dict[str, Any]:
    (container,) = containers(templates(made(with_pool(pool)))[SET])
    return container


def of_syncer(more: dict[str, Any]) -> dict[str, Any]:
    (container,) = containers(templates(made(with_syncer(more)))[DEPLOYMENT])
    return container


@pytest.mark.parametrize("container", [of_learner, of_syncer])
def test_variables_and_resources_arrive_beside_ours(container: Any) -> None:
    found, before = container(GIVEN), container({})
    assert found["env"] == [*before["env"], *GIVEN["env"]]
    assert found["resources"]["limits"] == {"example.com/gpu": "1", "memory": "1024Mi"}
    assert found["resources"]["requests"]["cpu"] == "500m"
    rest = {"env": before["env"], "resources": before.get("resources")}
    assert {**found, **rest} == {**before, **rest}


CPU_AND_MEMORY: dict[str, list[dict[str, Any]]] = yaml.safe_load("""
nothing: [{}, {requests: &little {cpu: 100m, memory: 256Mi}}]
no resources: [{resources: {}}, {requests: *little}]
one request: [{resources: {requests: {memory: 4Gi}}}, {requests: {cpu: 100m, memory: 4Gi}}]
a limit below: [{resources: {limits: {memory: 128Mi}}}, {limits: {memory: 128Mi}, requests: {cpu: 100m}}]
both limits: [{resources: {limits: {cpu: 1, memory: 1Gi}}}, {limits: {cpu: "1", memory: 1Gi}}]
a device: [{resources: {limits: {example.com/nic: 1}}}, {limits: {example.com/nic: "1"}, requests: *little}]
none, by its own words: [{resources: {requests: {cpu: 0, memory: 0}}}, {requests: {cpu: "0", memory: "0"}}]
""")


@pytest.mark.parametrize("case", CPU_AND_MEMORY)
@pytest.mark.parametrize("container", [of_learner, of_syncer])
def test_cpu_and_memory_of_which_nothing_is_said_are_requested(container: Any, case: str) -> None:
    given, expected = CPU_AND_MEMORY[case]
    found = container(given)["resources"]
    found["requests"].pop("ephemeral-storage")
    assert {key: value for key, value in found.items() if value} == expected


def test_a_null_is_the_same_as_nothing_said() -> None:
    env = [{"name": "A", "value": None, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name", "apiVersion": None}}}]
    expected = {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    assert of_learner({"env": env})["env"][-1] == expected


POOL = "spec.regions[0].pools[0]"


@pytest.mark.parametrize("name", ["HOME", "POD_INDEX"])
def test_a_variable_that_gets_in_the_way_is_refused_in_one_line(name: str) -> None:
    line = f"env[0].name: {name} is set by the operator; use a name other than HOME, POD_INDEX or DILOCO_POD"
    for container, place in ((of_learner, POOL), (of_syncer, "spec.syncer")):
        with pytest.raises(InvalidSpecError) as caught:
            container({"env": [{"name": name, "value": "0"}]})
        assert str(caught.value) == f"{place}.{line}"


def test_every_problem_is_told_at_once() -> None:
    volumes = {"podTemplate": {"spec": {"volumes": [{"name": "tls"}]}}}
    with pytest.raises(InvalidSpecError) as caught:
        made(with_pool({**volumes, "env": [{"name": "HOME"}]}))
    places = [problem.path for problem in caught.value.problems]
    assert places == [f"{POOL}.env[0].name", f"{POOL}.podTemplate.spec.volumes[0].name"]
