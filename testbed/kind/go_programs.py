"""Builds the programs of the Go module in `programs`: helm, kind, and all that runs on a Kubernetes node.

One module, so that what they share has one version and is compiled once. It replaces the parts of Kubernetes, folders
of its repository, by their published versions. After a change of a version: `go mod tidy` in that folder.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from testbed.kind import versions
from testbed.kind.cache import Cache
from testbed.kind.commands import CommandFailedError, Unavailable, on_path, run, step
from testbed.kind.digests import contents, digest_of

_FLAGS = (
    "-s -w"
    f" -X k8s.io/component-base/version.gitVersion=v{versions.KUBERNETES}"
    f" -X k8s.io/client-go/pkg/version.gitVersion=v{versions.KUBERNETES}"
    f" -X helm.sh/helm/v3/internal/version.version=v{versions.HELM}"
)
_KUBERNETES = "k8s.io/kubernetes/cmd"
_CONTAINERD = "github.com/containerd/containerd/v2/cmd"
_CNI = "github.com/containernetworking/plugins/plugins"


@dataclass(frozen=True)
class Programs:
    """What is built together, as Go packages; a program is called as the last folder of its package."""

    packages: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(package.rpartition("/")[2] for package in self.packages)

    def building(self, cache: Cache) -> AbstractContextManager[None]:
        """Held by who builds them."""
        return cache.lock(f"programs-{self.names[0]}")


HELM = Programs(("helm.sh/helm/v3/cmd/helm",))
API_SERVER = Programs((f"{_KUBERNETES}/kube-apiserver", f"{_KUBERNETES}/kubectl", "./etcd"))
"""What tests want that need no node."""
KIND = Programs(("sigs.k8s.io/kind",))
NODE = Programs(
    (
        *(f"{_KUBERNETES}/{name}" for name in ("kubelet", "kubeadm", "kube-controller-manager", "kube-scheduler")),
        f"{_KUBERNETES}/kube-proxy",
        *(f"{_CONTAINERD}/{name}" for name in ("containerd", "ctr", "containerd-shim-runc-v2")),
        *(f"{_CNI}/{name}" for name in ("main/ptp", "main/loopback", "meta/portmap", "ipam/host-local")),
        "./coredns",
        "./pause",
    )
)
STORAGE = Programs(("github.com/rancher/local-path-provisioner",))
"""Apart from the others: it spells a package's path in another way than they do, which Go refuses in one build."""


def build(cache: Cache, programs: Programs) -> dict[str, Path]:
    """The programs by name, built if they are not there yet; minutes the first time.

    Raises:
        Unavailable: They cannot be fetched or built.
    """
    found = {name: folder(cache) / name for name in programs.names}
    with programs.building(cache):
        if not all(path.exists() for path in found.values()):
            _build(cache, programs, found)
    return found


def folder(cache: Cache) -> Path:
    """Where programs are once they are built."""
    return cache.folder(f"bin/{digest_of(contents(versions.PROGRAMS, ['.']) | {'flags': _FLAGS.encode()})}")


def sources_of_kind() -> Path:
    """The folder of kind's module, which has the files of its node image.

    Raises:
        Unavailable: It cannot be fetched.
    """
    return folder_of("sigs.k8s.io/kind")


def folder_of(module: str, user: Path = versions.PROGRAMS) -> Path:
    """The folder of a module's files, of the version that the module in the folder ``user`` requires.

    Raises:
        Unavailable: It cannot be fetched.
    """
    _go("mod", "download", module, cwd=user)
    return Path(_go("list", "-m", "-f", "{{.Dir}}", module, cwd=user).strip())


def _build(cache: Cache, programs: Programs, targets: dict[str, Path]) -> None:
    unfinished = cache.folder(f"bin/{programs.names[0]}.unfinished")
    with step(f"building {', '.join(programs.names)}"):
        _go("build", "-ldflags", _FLAGS, "-o", str(unfinished), *programs.packages)
    for name, target in targets.items():
        (unfinished / name).rename(target)
    unfinished.rmdir()


def build_apart(cache: Cache, module: Path) -> Path:
    """The program of a module apart from the others, a folder of sources, built if it is not there yet.

    Raises:
        Unavailable: It cannot be fetched or built.
    """
    target = cache.folder(f"bin/{digest_of(contents(module, ['.']))}") / module.name
    if not target.exists():
        with step(f"building {module.name}"):
            _go("build", "-ldflags", "-s -w", "-o", str(target), ".", cwd=module)
    return target


def _go(*arguments: str, cwd: Path = versions.PROGRAMS) -> str:
    executable = on_path("go")
    if executable is None:
        raise Unavailable("no Go on PATH to build what cannot be pulled")
    env = {"CGO_ENABLED": "0", "GOFLAGS": "-trimpath -buildvcs=false", "GOWORK": "off"}
    try:
        return run(executable, *arguments, env=env, cwd=cwd)
    except CommandFailedError as error:
        raise Unavailable(f"go {arguments[0]}: {error.last_line}") from None
