"""Values: wrong ones are refused by name, values.yaml and its schema agree, and the version is the package's."""

import json
from typing import Any

import pytest
import yaml

from diloco import __version__
from tests.support.rendered_chart import CHART, ChartRefusedError, Render

SET_BY_HELM = {"global"}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"replicas": 2}, "replicas"),
        ({"image": {"repo": "x"}}, "repo"),
        ({"image": {"repository": "r.example/op:v1"}}, "/image/repository"),
        ({"image": {"repository": ""}}, "/image/repository"),
        ({"image": {"digest": "sha256:abc"}}, "/image/digest"),
        ({"image": {"pullPolicy": "Sometimes"}}, "/image/pullPolicy"),
        ({"trainer": {"image": {"pullPolicy": "Always"}}}, "pullPolicy"),
        ({"watchNamespaces": "team-a"}, "/watchNamespaces"),
        ({"watchNamespaces": ["Team_A"]}, "/watchNamespaces/0"),
        ({"operator": {"resyncSeconds": 0}}, "/operator/resyncSeconds"),
        ({"operator": {"logJson": "yes"}}, "/operator/logJson"),
        ({"operator": {"verbose": "yes"}}, "/operator/verbose"),
        ({"crds": {"keep": "true"}}, "/crds/keep"),
        ({"service": {"port": 70000}}, "/service/port"),
        ({"networkPolicy": {"from": [{}]}}, "/networkPolicy/from/0"),
        ({"networkPolicy": {"from": [{"namespace": "a"}]}}, "namespace"),
        ({"imagePullSecrets": ["regcred"]}, "/imagePullSecrets/0"),
        ({"extraEnv": {"A": "b"}}, "/extraEnv"),
        ({"podLabels": {"team": 3}}, "/podLabels/team"),
        ({"podDisruptionBudget": {"maxUnavailable": -1}}, "/podDisruptionBudget/maxUnavailable"),
        ({"monitoring": {"serviceMonitor": {"interval": "30s"}}}, "interval"),
    ],
)
def test_what_cannot_be_is_refused_and_named(render: Render, values: dict[str, Any], named: str) -> None:
    with pytest.raises(ChartRefusedError) as refused:
        render(**values)
    assert "values don't meet the specifications of the schema" in str(refused.value)
    assert named.lstrip("/").replace("/", ".") in str(refused.value).replace("/", ".")


@pytest.mark.parametrize(
    "values",
    [
        {"image": {"repository": "r.example:5000/team/op"}},
        {"global": {"shared": True}},
        {"podDisruptionBudget": {"enabled": True, "maxUnavailable": "100%"}},
        {"extraEnv": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
        {"resources": {"limits": {"memory": "1Gi", "example.com/device": 1}}},
    ],
)
def test_what_can_be_is_taken(render: Render, values: dict[str, Any]) -> None:
    assert render(**values).of_kind("Deployment")


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_the_schema_knows_every_value_and_no_others() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert differences(schema, values, "") == []


def differences(schema: dict[str, Any], values: dict[str, Any], path: str) -> list[str]:
    """Members that only one of them has, and mappings that allow unknown members."""
    properties: dict[str, Any] = schema["properties"]
    found = [f"{path}: others pass"] if schema.get("additionalProperties") is not False else []
    # A default that is empty or free-form does not show what it may contain.
    unknown = (values.keys() ^ properties.keys()) - (set() if path else SET_BY_HELM)
    found += [f"{path}.{name}" for name in sorted(unknown) if path not in (".resources", ".affinity")]
    for name in sorted(values.keys() & properties.keys()):
        if "properties" in properties[name]:
            found += differences(properties[name], values[name], f"{path}.{name}")
    return found
