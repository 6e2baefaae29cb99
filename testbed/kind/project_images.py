"""The project's two images, built from its Dockerfile on bases of Debian's packages and loaded into clusters.

A tag is the digest of what the image is made of: unchanged code is neither built nor loaded again, and pods run the
checkout's code and no other.
"""

import json
import os
import runpy
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.kind import debian, image_transfer
from testbed.kind.commands import run, step, succeeds
from testbed.kind.digests import contents, digest_of

if TYPE_CHECKING:
    from testbed.kind.clusters import Cluster

LOCK = "images"
"""Of the cache: held by who builds or gives images."""
REPOSITORY = Path(__file__).resolve().parents[2]
_OF_BOTH = (
    *("Dockerfile", ".dockerignore", "pyproject.toml", "constraints.txt", "README.md", "LICENSE"),
    *("scripts/image_requirements.py", "operator/diloco_operator"),
)
_CTR = ("ctr", "-n", "k8s.io")
_REGISTRY = "localhost"
"""No registry has images of this name, so a node that lacks one cannot get another image in its place."""

INPUTS = {
    "operator": (
        *_OF_BOTH,
        "trainer/diloco/__init__.py",
        "trainer/diloco/py.typed",
        "trainer/diloco/runtime",
        "trainer/diloco/spec",
    ),
    "trainer": (*_OF_BOTH, "trainer/diloco"),
}
"""By target, the files that the Dockerfile copies."""


@dataclass(frozen=True)
class Images:
    """Names of images that the clusters' nodes have."""

    operator: str
    trainer: str


def build(repository: Path = REPOSITORY) -> Images:
    """Both images, built if what they are made of has changed.

    Raises:
        Unavailable: No base image can be had.
        CommandFailedError: The Dockerfile does not build: a mistake of this repository's.
    """
    made_on = base()
    names = {
        target: f"{_REGISTRY}/diloco-{target}:{digest_of(contents(repository, inputs) | {'base': made_on.encode()})}"
        for target, inputs in INPUTS.items()
    }
    arguments = [f"--build-arg={target.upper()}_BASE={made_on}" for target in INPUTS]
    arguments += debian.proxy_arguments(os.environ)
    for target, name in names.items():
        if not debian.has_image(name):
            with step(f"building {name}"):
                run("docker", "build", "--target", target, "--tag", name, *arguments, repository)
    return Images(**names)


def dependencies(repository: Path = REPOSITORY) -> str:
    """All that the images install, as text: of it comes the layer that is most of what nodes are given."""
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = runpy.run_path(str(repository / "scripts/image_requirements.py"))["EXTRAS"]
    asked = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)]
    return json.dumps(asked) + (repository / "constraints.txt").read_text(encoding="utf-8")


def base() -> str:
    """The base of both images.

    Raises:
        Unavailable: It cannot be had.
    """
    return debian.image(debian.TORCH, debian.Host.read())


def load(cluster: "Cluster", images: Images, saved: Path) -> None:
    """Give the images to the cluster's nodes that do not have them; ``saved`` as `image_transfer.give` has it."""
    names = (images.operator, images.trainer)
    nodes = cluster.nodes
    lacking = [node for node in nodes if not set(names) <= set(images_on(node))]
    if lacking:
        with step(f"loading {' and '.join(names)} into {', '.join(lacking)}"):
            image_transfer.give(names, lacking, saved)
    _forget_older(cluster, nodes, names)


def images_on(node: str) -> list[str]:
    """The full names of the images that a node's containerd has."""
    return run("docker", "exec", node, *_CTR, "images", "list", "--quiet").split()


def others(names: Iterable[str], listed: Iterable[str]) -> list[str]:
    """Of ``listed``, the images of the same repositories as ``names`` but of other code."""
    repositories = {name.rpartition(":")[0]: name for name in names}
    return [name for name in listed if repositories.get(name.rpartition(":")[0], name) != name]


def _forget_older(cluster: "Cluster", nodes: list[str], names: tuple[str, ...]) -> None:
    """Remove images of older code, which would fill the disk. Those that a node still needs stay on it."""
    workloads = json.dumps(cluster.items("pods,statefulsets,deployments"))
    for node in nodes:
        unused = [name for name in others(names, images_on(node)) if name not in workloads]
        if unused:
            run("docker", "exec", node, *_CTR, "images", "remove", *unused)
    for name in others(names, run("docker", "image", "ls", "--format", "{{.Repository}}:{{.Tag}}").split()):
        # The engine keeps one that a container of its own has.
        succeeds("docker", "image", "rm", name)
