"""Installs the project's chart into a cluster of the test bed, with the images that were built here."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.kind.bed import Bed
from testbed.kind.clusters import Cluster
from testbed.kind.commands import run
from testbed.kind.project_images import REPOSITORY, Images

FOLDER = "charts/diloco-operator"
"""In the repository."""
CHART = REPOSITORY / FOLDER
RESTRICTED = {
    "pod-security.kubernetes.io/enforce": "restricted",
    "pod-security.kubernetes.io/enforce-version": "latest",
}
POLL_SECONDS = 2
"""Between two looks of the operator at a syncer. Tests wait for what it sees; the default is 5."""


@dataclass(frozen=True)
class Release:
    """An installed chart."""

    name: str
    namespace: str


def install(
    bed: Bed, images: Images, release: Release, values: Mapping[str, Any] | None = None, *, folder: Path = CHART
) -> None:
    """Install or upgrade, and wait until it is ready.

    Raises:
        CommandFailedError: helm refuses, or the operator does not become ready.
    """
    make_namespace(bed.cluster, release.namespace)
    flags = ("upgrade", "--install", release.name, folder, "--namespace", release.namespace)
    waiting = ("--wait", "--timeout", "180s", "--values", "-")
    helm(bed, *flags, *waiting, stdin=json.dumps(merged(local_values(images), values or {})))


def uninstall(bed: Bed, release: Release) -> None:
    """Remove the operator. Jobs and their definition stay: the chart keeps them."""
    helm(bed, "uninstall", release.name, "--namespace", release.namespace, "--ignore-not-found", "--wait")


def helm(bed: Bed, *arguments: str | Path, stdin: str | None = None) -> str:
    """What helm says, of the test bed's cluster and no other."""
    command = (bed.tools.helm, "--kubeconfig", bed.cluster.kubeconfig, *arguments)
    return run(*command, stdin=stdin, timeout_seconds=300)


def local_values(images: Images) -> dict[str, Any]:
    """Values with images that no registry has, and with short waits."""
    return {
        "image": _image(images.operator),
        "trainer": {"image": _image(images.trainer)},
        "operator": {"pollSeconds": POLL_SECONDS},
    }


def merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` with ``changes``, mapping by mapping, as helm merges values."""
    both = dict(values)
    for name, change in changes.items():
        old = both.get(name)
        both[name] = merged(old, change) if isinstance(old, Mapping) and isinstance(change, Mapping) else change
    return both


def make_namespace(cluster: Cluster, name: str) -> None:
    """A namespace in which Pod Security `restricted` is enforced."""
    metadata = {"name": name, "labels": RESTRICTED}
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})


def _image(name: str) -> dict[str, str]:
    repository, _, tag = name.partition(":")
    return {"repository": repository, "tag": tag}
