from typing import Any

import pytest

from diloco_operator.options import BadArgumentError, OperatorOptions, parse


def test_a_pod_needs_no_flag() -> None:
    options = parse([], {}, "system").options
    assert options.operator_namespace == "system"
    assert options.namespaces == ()
    assert options.trainer_image is None


def test_variables_are_read_and_flags_win() -> None:
    environment = {
        "DILOCO_OPERATOR_NAMESPACE": "ops",
        "DILOCO_TRAINER_IMAGE": "registry/trainer:1",
        "DILOCO_NAMESPACES": "a, b,",
        "DILOCO_RESYNC_SECONDS": "30",
        "DILOCO_LOG_JSON": "true",
        "DILOCO_VERBOSE": "true",
        "DILOCO_LEASE_NAME": "",
    }
    options = parse(["--resync-seconds", "90", "--no-log-json"], environment, "system").options
    assert options.operator_namespace == "ops"
    assert options.trainer_image == "registry/trainer:1"
    assert options.namespaces == ("a", "b")
    assert options.resync_seconds == 90.0
    assert options.log_json is False
    assert options.verbose is True
    assert options.lease_name == "diloco-operator"


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({}, "--operator-namespace"),
        (
            {"DILOCO_OPERATOR_NAMESPACE": "x", "DILOCO_POLL_SECONDS": "soon"},
            "DILOCO_POLL_SECONDS: soon is not a number",
        ),
        ({"DILOCO_OPERATOR_NAMESPACE": "x", "DILOCO_LOG_JSON": "maybe"}, "DILOCO_LOG_JSON: maybe is not a boolean"),
    ],
)
def test_a_mistake_is_one_line_that_names_what_to_change(environment: dict[str, str], named: str) -> None:
    with pytest.raises(BadArgumentError) as caught:
        parse([], environment, None)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"lease_name": "diloco-jobs"}, "lease_name: diloco-jobs is the Lease of a namespace with jobs"),
        ({"operator_namespace": ""}, "--operator-namespace: is missing"),
        ({"poll_seconds": 0.0}, "poll_seconds: 0.0 is not above 0"),
        ({"resync_seconds": float("nan")}, "resync_seconds: nan is not above 0"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        OperatorOptions(**{"operator_namespace": "diloco-system", **wrong})
