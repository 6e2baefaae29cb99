"""The project's two images, built from its Dockerfile on bases of Debian's packages and loaded into clusters.

A tag is the digest of what the image is made of: unchanged code is neither built nor loaded again, and pods run the
checkout's code and no other.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from kind import debian
from kind.clusters import Cluster
from kind.commands import CommandFailedError, run, step
from kind.digests import contents, digest_of
from kind.tools import Tools

REPOSITORY = Path(__file__).resolve().parents[2]
_OF_BOTH = (
    *("Dockerfile", ".dockerignore", "pyproject.toml", "constraints.txt", "README.md", "LICENSE"),
    *("scripts/image_requirements.py", "operator/diloco_operator"),
)
INPUTS = {
    "operator": (*_OF_BOTH, "trainer/diloco/__init__.py", "trainer/diloco/py.typed", "trainer/diloco/spec"),
    "trainer": (*_OF_BOTH, "trainer/diloco"),
}
"""By target, the files that the Dockerfile copies."""

_BASES = {
    "OPERATOR_BASE": debian.Base("bookworm", ("python3", "python3-venv", "ca-certificates")),
    # Debian's torch computes on CPUs: a fifth of the size of what the package index has for this platform. Without
    # OpenBLAS it is fifty times slower.
    "TRAINER_BASE": debian.Base(
        "trixie", ("python3", "python3-venv", "python3-torch", "libopenblas0-pthread", "ca-certificates")
    ),
}


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
    host = debian.Host.read()
    bases = {argument: debian.image(base, host) for argument, base in _BASES.items()}
    tags = {name: tag.encode() for name, tag in bases.items()}
    names = {
        target: f"diloco-{target}:{digest_of(contents(repository, inputs) | tags)}" for target, inputs in INPUTS.items()
    }
    arguments = [f"--build-arg={name}={tag}" for name, tag in bases.items()] + debian.proxy_arguments(os.environ)
    for target, name in names.items():
        if not debian.has_image(name):
            with step(f"building {name}"):
                run("docker", "build", "--target", target, "--tag", name, *arguments, repository)
    return Images(**names)


def load(tools: Tools, cluster: Cluster, images: Images) -> None:
    """Give the images to the cluster's nodes that do not have them."""
    names = (images.operator, images.trainer)
    nodes = [node["metadata"]["name"] for node in cluster.get("nodes")["items"]]
    for name in names:
        lacking = [node for node in nodes if not has_image(node, name)]
        if lacking:
            with step(f"loading {name} into {', '.join(lacking)}"):
                command = ("load", "docker-image", "--name", cluster.name, "--nodes", ",".join(lacking))
                run(tools.kind, *command, name)
    _forget_older(names)


def has_image(node: str, name: str) -> bool:
    """Whether a node's containerd has an image; it writes the name with a registry's before it."""
    listed = run("docker", "exec", node, "ctr", "-n", "k8s.io", "images", "list", "--quiet").split()
    return any(line == name or line.endswith(f"/{name}") for line in listed)


def _forget_older(names: tuple[str, ...]) -> None:
    """What was built of older code would fill the disk."""
    for name in names:
        repository = name.partition(":")[0]
        for other in run("docker", "image", "ls", "--format", "{{.Repository}}:{{.Tag}}", repository).split():
            if other != name:
                try:
                    run("docker", "image", "rm", other)
                except CommandFailedError:
                    continue  # a container has it
