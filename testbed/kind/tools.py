"""kind, helm and kubectl: the user's where their version goes with the clusters, otherwise built here."""

from dataclasses import dataclass
from pathlib import Path

from testbed.kind import go_programs, versions
from testbed.kind.cache import Cache
from testbed.kind.commands import CommandFailedError, on_path, run
from testbed.kind.versions import Allowed, version_in


@dataclass(frozen=True)
class Tools:
    """Where each is."""

    kind: Path
    helm: Path


def ensure(cache: Cache) -> Tools:
    """Tools that go with the clusters.

    Raises:
        Unavailable: One is neither on PATH nor can be built.
    """
    kind = users("kind", ("version",), versions.KIND_ALLOWED) or go_programs.build(cache, go_programs.KIND)["kind"]
    return Tools(kind, helm(cache))


def helm(cache: Cache) -> Path:
    """The user's helm, or one that is built here.

    Raises:
        Unavailable: It cannot be built.
    """
    return _users_helm() or go_programs.build(cache, go_programs.HELM)["helm"]


def helm_if_there(cache: Cache) -> Path | None:
    """The user's helm, or the one that was built before, or is being built; nothing is built for it."""
    if found := _users_helm():
        return found
    with go_programs.HELM.building(cache):
        built = go_programs.folder(cache) / "helm"
        return built if built.exists() else None


def _users_helm() -> Path | None:
    return users("helm", ("version", "--short"), versions.HELM_ALLOWED)


def kubectl(cache: Cache, node_image: str) -> Path:
    """The user's, or else the node image's own."""
    found = users("kubectl", ("version", "--client"), versions.KUBECTL_ALLOWED)
    return found or _kubectl_of(cache, node_image)


def users(name: str, ask: tuple[str, ...], allowed: Allowed) -> Path | None:
    """The user's program, if it says a version that is allowed."""
    path = on_path(name)
    if path is None:
        return None
    try:
        version = version_in(run(path, *ask, timeout_seconds=30))
    except CommandFailedError:
        return None
    return path if version is not None and version in allowed else None


def _kubectl_of(cache: Cache, node_image: str) -> Path:
    target = cache.folder(f"bin/kubectl-{versions.KUBERNETES}") / "kubectl"
    if not target.exists():
        container = run("docker", "create", node_image).strip()
        try:
            unfinished = target.with_name("kubectl.unfinished")
            run("docker", "cp", f"{container}:/usr/bin/kubectl", unfinished)
            unfinished.rename(target)
        finally:
            run("docker", "rm", "--force", "--volumes", container)
    return target
