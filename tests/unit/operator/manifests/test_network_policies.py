"""Who may connect to whom: the policies compared with the pods' labels and the ports that they open."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from diloco.spec import DiLoCoJob, load_job
from tests.support.made_objects import ALL_FIELDS, TWO_REGIONS, containers, live, made, of_kind, small_job, templates
from tests.support.network_policies import allows, selects

Objects = Sequence[Mapping[str, Any]]
Caller = tuple[Mapping[str, Any], Mapping[str, Any]]
"""A pod somewhere in the cluster, and its namespace."""


def somebody(labels: Mapping[str, str], namespace: str, **more: str) -> Caller:
    named = {"kubernetes.io/metadata.name": namespace, **more}
    return {"metadata": {"labels": labels}}, {"metadata": {"name": namespace, "labels": named}}


def allowed(objects: Objects, caller: Caller, target: Mapping[str, str], port: int) -> bool:
    """The effect of the policies: a pod that one selects is isolated, except for what a rule allows."""
    policies = [
        one for one in objects if one["kind"] == "NetworkPolicy" and selects(one, {"metadata": {"labels": target}})
    ]
    return not policies or any(allows(one, *caller, port) for one in policies)


def pods(job: DiLoCoJob) -> dict[str, Mapping[str, str]]:
    return {name.partition("/")[0]: template["metadata"]["labels"] for name, template in templates(made(job)).items()}


JOB = live(load_job(TWO_REGIONS))
PODS = pods(JOB)
OTHER = pods(JOB.model_copy(update={"metadata": JOB.metadata.model_copy(update={"name": "other"})}))
CALLERS = {
    "a learner of the job": somebody(PODS["StatefulSet"], "default"),
    "the syncer": somebody(PODS["Deployment"], "default"),
    "another job's learner": somebody(OTHER["StatefulSet"], "default"),
    "a learner of a job of this name elsewhere": somebody(PODS["StatefulSet"], "team"),
    "a stranger": somebody({}, "default"),
    "the operator": somebody({"app": "x"}, "diloco-system"),
    "monitoring": somebody({}, "metrics", **{"diloco.dev/monitoring": "true"}),
}
MAY = {
    ("Deployment", 29400): {"a learner of the job"},
    ("Deployment", 8080): {"the operator", "monitoring"},
    ("StatefulSet", 8080): {"the operator", "monitoring"},
    ("StatefulSet", 29400): set[str](),
    ("Deployment", 15008): {"a learner of the job", "the operator", "monitoring"},
    ("StatefulSet", 15008): {"the operator", "monitoring"},
}


@pytest.mark.parametrize(("target", "port"), MAY)
def test_only_these_get_in(target: str, port: int) -> None:
    assert {who for who, one in CALLERS.items() if allowed(made(JOB), one, PODS[target], port)} == MAY[target, port]


@pytest.mark.parametrize("port", [29401, 29402, 40000, 8080])
def test_pods_of_a_pool_of_units_reach_each_other_and_no_other_pods(port: int) -> None:
    pools = ({"name": name, "nodesPerLearner": nodes} for name, nodes in (("a", 2), ("b", 2), ("c", 1)))
    objects = made(small_job({"name": "east", "pools": list(pools)}))
    own = {name[-1]: template["metadata"]["labels"] for name, template in templates(objects).items()}
    callers = {name: somebody(labels, "team") for name, labels in own.items()}
    callers |= {"elsewhere": somebody(own["a"], "default"), "another job's": somebody(OTHER["StatefulSet"], "team")}
    for name in "abc":
        found = {who for who, one in callers.items() if allowed(objects, one, own[name], port)}
        assert found == ({name} if name != "c" else set())


def test_an_exposed_syncer_serves_learners_from_anywhere_but_not_its_pages() -> None:
    job = live(load_job(ALL_FIELDS))
    target = pods(job)["Deployment"]
    outside = CALLERS["a stranger"]
    assert allowed(made(job), outside, target, 29400)
    assert not allowed(made(job), outside, target, 8080)
    assert not allowed(made(job), outside, target, 15008)


def test_an_exposed_syncer_can_be_kept_to_ranges_of_addresses() -> None:
    job = load_job(ALL_FIELDS)
    expose = job.spec.syncer.expose.model_copy(update={"source_ranges": ("203.0.113.0/24",)})
    job = live(job, syncer=job.spec.syncer.model_copy(update={"expose": expose}))
    objects = made(job)
    assert not allowed(objects, CALLERS["a stranger"], pods(job)["Deployment"], 29400)
    rules = of_kind(objects, "NetworkPolicy")["all-fields-syncer"]["spec"]["ingress"]
    (rule,) = [one for one in rules if one["ports"][0]["port"] == 29400]
    assert {"ipBlock": {"cidr": "203.0.113.0/24"}} in rule["from"]
    service = of_kind(objects, "Service")["all-fields-syncer-exposed"]["spec"]
    assert service["loadBalancerSourceRanges"] == ["203.0.113.0/24"]
    assert service["externalTrafficPolicy"] == "Local"


def test_every_port_that_a_pod_opens_is_in_some_rule_and_no_others() -> None:
    objects = made(JOB)
    policies = of_kind(objects, "NetworkPolicy").values()
    for template in templates(objects).values():
        own = template["metadata"]["labels"]
        (policy,) = [one for one in policies if one["spec"]["podSelector"]["matchLabels"].items() <= own.items()]
        ruled = {(one["protocol"], one["port"]) for rule in policy["spec"]["ingress"] for one in rule["ports"]}
        assert ruled - {("TCP", 15008)} == {
            (one["protocol"], one["containerPort"]) for container in containers(template) for one in container["ports"]
        }
        assert policy["spec"]["policyTypes"] == ["Ingress"]
