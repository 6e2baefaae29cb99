"""A syncer's resource requests if the manifest names fewer."""

from typing import Any

import pytest

from diloco.spec.placement import Resources
from tests.support.made_objects import containers, live, made, templates, with_pool

LITTLE = {"cpu": "100m", "memory": "256Mi"}
CASES: dict[str, tuple[dict[str, Any] | None, dict[str, Any]]] = {
    "nothing": (None, {"requests": LITTLE}),
    "no resources": ({}, {"requests": LITTLE}),
    "one request": ({"requests": {"memory": "4Gi"}}, {"requests": {"cpu": "100m", "memory": "4Gi"}}),
    "both requests": ({"requests": {"cpu": 2, "memory": "4Gi"}}, {"requests": {"cpu": "2", "memory": "4Gi"}}),
    "a limit below": (
        {"limits": {"memory": "128Mi"}},
        {"limits": {"memory": "128Mi"}, "requests": {"cpu": "100m"}},
    ),
    "both limits": ({"limits": {"cpu": 1, "memory": "1Gi"}}, {"limits": {"cpu": "1", "memory": "1Gi"}}),
    "a device": (
        {"limits": {"example.com/nic": 1}},
        {"limits": {"example.com/nic": "1"}, "requests": LITTLE},
    ),
    "none, by its own words": ({"requests": {"cpu": 0, "memory": 0}}, {"requests": {"cpu": "0", "memory": "0"}}),
}


def syncer_resources(given: dict[str, Any] | None) -> dict[str, Any]:
    job = with_pool({})
    resources = None if given is None else Resources.model_validate(given)
    changed = live(job, syncer=job.spec.syncer.model_copy(update={"resources": resources}))
    (template,) = (one for name, one in templates(made(changed)).items() if name.startswith("Deployment"))
    (container,) = containers(template)
    found: dict[str, Any] = container["resources"]
    return found


@pytest.mark.parametrize("case", CASES)
def test_cpu_and_memory_of_which_nothing_is_said_are_requested(case: str) -> None:
    given, expected = CASES[case]
    assert syncer_resources(given) == expected


def test_learners_request_what_their_pool_says_and_no_more() -> None:
    (template,) = (one for name, one in templates(made(with_pool({}))).items() if name.startswith("StatefulSet"))
    assert all("resources" not in container for container in containers(template))
