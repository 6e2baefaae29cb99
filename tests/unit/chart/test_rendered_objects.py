"""What the chart renders: pods, images, the operator's settings, and optional objects."""

from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from diloco.spec import parse_job
from diloco_operator import labels
from diloco_operator.options import OperatorOptions
from tests.support import rendered_chart
from tests.support.rendered_chart import CHART, COMPONENT, NAMESPACE, Render, Rendered

DIGEST = "sha256:" + "0" * 64
MONITORS = {"ServiceMonitor", "PodMonitor"}


def test_helm_lint_has_nothing_to_say(helm: Path) -> None:
    assert "0 chart(s) failed" in rendered_chart.run(helm, "lint", "--strict", CHART, values={})


def test_every_object_is_one_and_no_two_are_the_same(plain: Rendered) -> None:
    places = [
        (one["apiVersion"], one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"])
        for one in plain.objects
    ]
    assert all(place[0] and place[1] and place[3] for place in places)
    assert len(set(places)) == len(places)


def test_nothing_is_taken_for_an_object_of_a_job(plain: Rendered) -> None:
    managers = {one["metadata"]["labels"][labels.MANAGED_BY] for one in plain.objects if "labels" in one["metadata"]}
    assert managers == {"Helm"}


def test_every_pod_is_restricted(plain: Rendered) -> None:
    restricted = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert len(plain.pods) == 2
    for pod in plain.pods:
        # No user: some platforms choose one.
        assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        assert [one["securityContext"] for one in pod["containers"]] == [restricted]


def test_every_container_says_what_it_needs(plain: Rendered) -> None:
    for pod in plain.pods:
        for container in pod["containers"]:
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
            assert "memory" in container["resources"]["limits"]


def test_there_is_one_operator_and_the_old_one_ends_first(plain: Rendered) -> None:
    spec = plain.only("Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_selectors_find_the_operators_pod_and_not_that_of_the_test(plain: Rendered) -> None:
    pod_labels = plain.only("Deployment")["spec"]["template"]["metadata"]["labels"]
    test_labels = plain.only("Pod")["metadata"]["labels"]
    selectors = [
        plain.only("Deployment")["spec"]["selector"]["matchLabels"],
        plain.only("Service")["spec"]["selector"],
        plain.only("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ]
    for selector in selectors:
        assert selector.items() <= pod_labels.items()
        assert not selector.items() <= test_labels.items()


def test_the_test_may_reach_the_operator(plain: Rendered) -> None:
    (rule,) = plain.only("NetworkPolicy")["spec"]["ingress"]
    assert rule["from"][0]["podSelector"]["matchLabels"].items() <= plain.only("Pod")["metadata"]["labels"].items()
    assert rule["from"][1] == {"namespaceSelector": {"matchLabels": {labels.MONITORING: "true"}}}
    (container,) = plain.only("Pod")["spec"]["containers"]
    service = plain.only("Service")
    port = service["spec"]["ports"][0]["port"]
    url = f"http://{service['metadata']['name']}.{NAMESPACE}.svc:{port}/readyz"
    assert container["env"] == [{"name": "DILOCO_READY_URL", "value": url}]


def test_the_test_is_the_script_that_is_checked_like_any_other(plain: Rendered) -> None:
    (container,) = plain.only("Pod")["spec"]["containers"]
    script = (CHART / "files/check_installation.py").read_text(encoding="utf-8")
    assert container["args"][1].strip() == script.strip()


def test_every_setting_of_the_operator_is_in_its_environment(render: Render) -> None:
    secrets = {"image": {"pullSecrets": ["one", "two"]}}
    environment = render(watchNamespaces=["b", "a", "b"], excludeNamespaces=["c"], trainer=secrets).environment
    assert environment == {
        "POD_UID": {"fieldRef": {"fieldPath": "metadata.uid"}},
        "DILOCO_OPERATOR_NAMESPACE": {"fieldRef": {"fieldPath": "metadata.namespace"}},
        "DILOCO_TRAINER_IMAGE": "diloco-trainer:0.1.0",
        "DILOCO_TRAINER_PULL_SECRETS": "one,two",
        "DILOCO_NAMESPACES": "b,a",
        "DILOCO_EXCLUDE_NAMESPACES": "c",
        "DILOCO_LEASE_NAME": "diloco-operator",
        "DILOCO_BINDING": "diloco-system-diloco-diloco-operator",
        "DILOCO_KUEUE": "false",
        "DILOCO_HEALTH_ADDRESS": "[::]:8080",
        "DILOCO_LOG_JSON": "true",
        "DILOCO_VERBOSE": "false",
        "DILOCO_RESYNC_SECONDS": "60",
        "DILOCO_POLL_SECONDS": "5",
        "DILOCO_REMOTE_DELETION_SECONDS": "600",
    }
    # The operator itself finds these.
    names = {field.name for field in fields(OperatorOptions)} - {"home_id", "assigns_users"}
    assert environment.keys() == {"POD_UID"} | {f"DILOCO_{name.upper()}" for name in names}


def test_without_values_there_are_no_namespaces_and_no_image_of_jobs(plain: Rendered, render: Render) -> None:
    assert "DILOCO_NAMESPACES" not in plain.environment
    assert "DILOCO_TRAINER_IMAGE" not in render(trainer={"image": {"repository": ""}}).environment


@pytest.mark.parametrize(
    ("image", "reference"),
    [
        ({"repository": "r.example:5000/op"}, "r.example:5000/op:0.1.0"),
        ({"repository": "r.example/op", "tag": "v7"}, "r.example/op:v7"),
        ({"repository": "r.example/op", "digest": DIGEST}, f"r.example/op@{DIGEST}"),
        ({"repository": "r.example/op", "tag": "v7", "digest": DIGEST}, f"r.example/op@{DIGEST}"),
    ],
)
def test_a_digest_wins_over_a_tag(render: Render, image: dict[str, str], reference: str) -> None:
    rendered = render(image=image, trainer={"image": image})
    assert {one["image"] for pod in rendered.pods for one in pod["containers"]} == {reference}
    assert rendered.environment["DILOCO_TRAINER_IMAGE"] == reference


def test_what_is_said_of_the_pod_reaches_it(render: Render) -> None:
    given = {
        "imagePullSecrets": [{"name": "s"}],
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
        "priorityClassName": "high",
    }
    extra = {"name": "HTTPS_PROXY", "value": "http://proxy"}
    own = {"podLabels": {"team": "a"}, "podAnnotations": {"note": "b"}, "extraEnv": [extra]}
    rendered = render(**given, **own)
    template = rendered.only("Deployment")["spec"]["template"]
    assert {name: template["spec"][name] for name in given} == given
    assert template["metadata"]["labels"]["team"] == "a"
    assert template["metadata"]["annotations"] == {"note": "b"}
    assert extra in template["spec"]["containers"][0]["env"]


def test_a_pods_own_labels_cannot_take_it_out_of_its_selectors(render: Render) -> None:
    template = render(podLabels={COMPONENT: "other"}).only("Deployment")["spec"]["template"]
    assert template["metadata"]["labels"][COMPONENT] == "operator"


def test_monitors_and_the_disruption_budget_are_there_only_on_request(plain: Rendered, render: Render) -> None:
    assert {one["kind"] for one in plain.objects}.isdisjoint({*MONITORS, "PodDisruptionBudget"})
    on = {"enabled": True, "labels": {"release": "prometheus"}, "intervalSeconds": 15}
    rendered = render(podDisruptionBudget={"enabled": True}, monitoring={"serviceMonitor": on, "podMonitor": on})
    assert rendered.only("PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    operator = rendered.only("ServiceMonitor")["spec"]
    service = rendered.only("Service")
    assert operator["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert operator["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    assert {rendered.only(kind)["metadata"]["labels"]["release"] for kind in MONITORS} == {"prometheus"}


def test_the_pod_monitor_selects_learners_and_syncers_not_the_operator(render: Render) -> None:
    spec = render(monitoring={"podMonitor": {"enabled": True}}, watchNamespaces=["a"]).only("PodMonitor")["spec"]
    assert spec["namespaceSelector"] == {"matchNames": ["a"]}
    assert spec["podMetricsEndpoints"][0]["port"] == "http"
    (expression,) = spec["selector"]["matchExpressions"]
    assert (expression["key"], expression["operator"]) == (labels.COMPONENT, "In")
    assert set(expression["values"]) == {labels.LEARNER, labels.SYNCER}
    assert spec["selector"]["matchLabels"].items() <= labels.of_job("job", labels.LEARNER).items()


def test_egress_is_closed_on_request_save_for_what_is_needed(plain: Rendered, render: Render) -> None:
    assert plain.only("NetworkPolicy")["spec"]["policyTypes"] == ["Ingress"]
    spec = render(networkPolicy={"egress": {"enabled": True}}).only("NetworkPolicy")["spec"]
    names, api, syncers = spec["egress"]
    assert {one["port"] for one in names["ports"]} == {53}
    assert ({one["port"] for one in api["ports"]}, api.keys()) == ({443, 6443}, {"ports"})
    (to,) = syncers["to"]
    assert to["podSelector"]["matchLabels"].items() <= labels.of_job("job", labels.SYNCER).items()


def test_each_api_server_that_the_operator_may_reach_has_its_own_ports(render: Render) -> None:
    servers = [
        {"ports": [{"port": port, "protocol": "TCP"}], "to": [{"ipBlock": {"cidr": f"{address}/32"}}]}
        for address, port in (("10.0.0.1", 6443), ("203.0.113.7", 8443))
    ]
    egress = {"enabled": True, "apiServers": servers}
    assert render(networkPolicy={"egress": egress}).only("NetworkPolicy")["spec"]["egress"][1:-1] == servers


def test_the_custom_resource_is_the_generated_one_and_is_kept(plain: Rendered, render: Render) -> None:
    generated = yaml.safe_load((CHART.parents[1] / "crds/dilocojobs.diloco.dev.yaml").read_text(encoding="utf-8"))
    kept = plain.only("CustomResourceDefinition")
    assert kept["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert kept == generated
    assert render(crds={"keep": False}).only("CustomResourceDefinition") == generated
    assert render(crds={"install": False}).of_kind("CustomResourceDefinition") == []


@pytest.mark.parametrize("trainer_image", ["diloco-trainer", ""])
def test_the_job_in_the_notes_is_a_good_one(helm: Path, tmp_path: Path, trainer_image: str) -> None:
    # Helm shows notes only where there is a cluster: here they become an object's field.
    chart = tmp_path / "chart"
    (chart / "templates").mkdir(parents=True)
    for name in ("Chart.yaml", "values.yaml", "templates/_helpers.tpl"):
        (chart / name).write_text((CHART / name).read_text(encoding="utf-8"), encoding="utf-8")
    notes = (CHART / "templates/NOTES.txt").read_text(encoding="utf-8")
    (chart / "templates/_notes.tpl").write_text(f'{{{{ define "notes" }}}}{notes}{{{{ end }}}}', encoding="utf-8")
    shown = '{"apiVersion": "v1", "kind": "ConfigMap", "notes": {{ include "notes" . | toJson }}}'
    (chart / "templates/shown.yaml").write_text(shown, encoding="utf-8")
    values = {"watchNamespaces": ["team-a"], "trainer": {"image": {"repository": trainer_image}}}
    text = rendered_chart.helm_template(helm, values, chart).only("ConfigMap")["notes"]
    job = parse_job(text.partition("<<'JOB'\n")[2].partition("\nJOB\n")[0])
    assert (job.metadata.name, job.metadata.namespace) == ("first", "team-a")
    assert (job.spec.image is None) == bool(trainer_image)
