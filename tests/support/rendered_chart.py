"""The project's chart as Helm renders it, read as objects."""

import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parents[2] / "charts/diloco-operator"
NAMESPACE = "diloco-system"
RELEASE = "diloco"
# Given explicitly, as a helm that was built from its module assumes Kubernetes 1.20.
KUBERNETES = "1.36.0"


class ChartRefusedError(Exception):
    """Helm's error for values that it rejects."""


@dataclass(frozen=True)
class Rendered:
    """Objects in the order of Helm's output."""

    objects: tuple[dict[str, Any], ...]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """All objects of a kind."""
        return [one for one in self.objects if one["kind"] == kind]

    def only(self, kind: str, component: str = "") -> dict[str, Any]:
        """The only object of a kind; with ``component``, the one with that label."""
        found = [
            one for one in self.of_kind(kind) if not component or one["metadata"]["labels"][COMPONENT] == component
        ]
        (one,) = found
        return one

    @property
    def pods(self) -> list[dict[str, Any]]:
        """The specs of all pods."""
        return [one["spec"]["template"]["spec"] for one in self.of_kind("Deployment")] + [
            one["spec"] for one in self.of_kind("Pod")
        ]

    @property
    def environment(self) -> dict[str, Any]:
        """The operator's environment: values, or their sources."""
        (container,) = self.only("Deployment")["spec"]["template"]["spec"]["containers"]
        return {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}


COMPONENT = "app.kubernetes.io/component"


Render = Callable[..., Rendered]
"""Renders the chart with these values."""


def helm_template(helm: Path, values: Mapping[str, Any], chart: Path = CHART, namespace: str = NAMESPACE) -> Rendered:
    """The chart with ``values``.

    Raises:
        ChartRefusedError: Helm rejects them.
    """
    text = run(helm, "template", RELEASE, chart, "--namespace", namespace, values=values)
    return Rendered(tuple(one for one in yaml.safe_load_all(text) if one is not None))


def run(helm: Path, *arguments: str | Path, values: Mapping[str, Any]) -> str:
    """Helm's output for a chart with ``values``; it reads no cluster and no configuration of the user."""
    with tempfile.TemporaryDirectory() as home:
        command = [helm, *arguments, "--kube-version", KUBERNETES, "--values", "-"]
        done = subprocess.run(
            command,
            env={"HOME": home, "PATH": ""},
            input=yaml.safe_dump(dict(values)),
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise ChartRefusedError(done.stderr.strip() + done.stdout.strip())
    return done.stdout
