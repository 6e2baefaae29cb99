"""The image of a cluster's nodes: the published one where it can be pulled, otherwise one built here.

A built one holds the same programs, built from the same releases by `go_programs`, and kind's own files. It has no
network plugin that needs an image: `network` wires its pods. Everything it runs is imported into its containerd, so
that a cluster of it pulls nothing; the project's images too, unpacked, so that a new cluster is given no more than what
has changed in them. Docker keeps what of a build was finished; so does the cache for the programs.
"""

import os
import re
import shutil
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from testbed.kind import debian, go_programs, project_images, versions
from testbed.kind.cache import Cache
from testbed.kind.commands import CommandFailedError, pipe, run, step, succeeds
from testbed.kind.digests import contents, digest_of
from testbed.kind.engine import Engine
from testbed.kind.image_transfer import UNPACK

RECIPE = Path(__file__).with_name("node")
_STEPS_OF_RECIPE = "3"
"""To be raised where this module makes another image of the same files and versions."""

_PUBLISHED = f"kindest/node:v{versions.KUBERNETES}"
_PULL_SECONDS = 900.0
_NODE_PACKAGES = (
    *("systemd", "conntrack", "iptables", "nftables", "iproute2", "ethtool", "util-linux", "mount", "kmod"),
    *("libseccomp2", "pigz", "e2fsprogs", "bash", "ca-certificates", "curl", "jq", "procps", "runc", "hostname"),
)
_HELPER = debian.Base("bookworm", ("iptables", "nftables", "conntrack", "kmod"))
_ON_THE_NODE = {
    "containerd": ("containerd", "ctr", "containerd-shim-runc-v2"),
    "cni": ("ptp", "loopback", "portmap", "host-local"),
    "kubernetes": ("kubelet", "kubeadm", "kubectl"),
}
"""Programs by the folder of the Dockerfile's context that they go into."""
_CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "coredns", "etcd")
_UNPACKING = "/unpacking"
_REPOSITORY = "diloco-kind-node"
_STORAGE = {"local-path-provisioner": "diloco-kind-local-path-provisioner:1", "helper": "diloco-kind-helper:1"}


@dataclass(frozen=True)
class NodeImage:
    """An image and what a cluster of it needs to be given."""

    name: str
    brings_network: bool
    is_restricted: bool
    """Whether its kubelet must do without CAP_SYS_RESOURCE."""


def ensure(cache: Cache, engine: Engine) -> NodeImage:
    """A node image, pulled or built if it is not there yet.

    Raises:
        Unavailable: It can be neither.
    """
    if engine.runs_stock_images and _pulled():
        return NodeImage(_PUBLISHED, brings_network=True, is_restricted=False)
    parts = {
        "programs": go_programs.folder(cache).name,
        "packages": " ".join((*_NODE_PACKAGES, *_HELPER.packages)),
        "base": debian.TORCH.tag(debian.Host.read()),
        "dependencies": project_images.dependencies(),
        "steps": _STEPS_OF_RECIPE,
    }
    digest = digest_of(contents(RECIPE, ["."]) | {name: part.encode() for name, part in parts.items()})
    name = f"{_REPOSITORY}:v{versions.KUBERNETES}-{digest}"
    if not debian.has_image(name):
        _build(name, cache)
        _forget_older(name)
    return NodeImage(name, brings_network=False, is_restricted=engine.is_restricted)


def _pulled() -> bool:
    if not debian.has_image(_PUBLISHED):
        with step(f"pulling {_PUBLISHED}"):
            succeeds("docker", "pull", "--quiet", _PUBLISHED, timeout_seconds=_PULL_SECONDS)
    # An image of this name that was not published by kind may lack what its clusters are given.
    plugin = "/kind/manifests/default-cni.yaml"
    return succeeds("docker", "run", "--rm", "--entrypoint", "cat", _PUBLISHED, plugin)


def _build(name: str, cache: Cache) -> None:
    wanted = (go_programs.API_SERVER, go_programs.NODE, go_programs.STORAGE)
    programs = {name: path for part in wanted for name, path in go_programs.build(cache, part).items()}
    host = debian.Host.read()
    base = debian.image(debian.Base("bookworm", _NODE_PACKAGES), host)
    helper = debian.image(_HELPER, host)
    with step(f"building {name}"), tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        work = Path(folder)
        files = go_programs.sources_of_kind() / "images/base/files"
        plain = _plain(work / "node", base, files, programs)
        images = _images(work, helper, files, programs)
        with cache.lock(project_images.LOCK):
            project = project_images.build()
        _commit(plain, images, [project.operator, project.trainer], name)
        # They carry a registry's names on this engine for no longer than they are needed.
        run("docker", "image", "rm", "--force", *images)


def _plain(context: Path, base: str, files: Path, programs: dict[str, Path]) -> str:
    """The node without images in it."""
    shutil.copytree(files, context / "files", copy_function=shutil.copyfile)
    for folder, _, names in os.walk(context / "files"):
        Path(folder).chmod(0o755)
        for name in names:
            # Git's executable bits are not in a module's archive.
            executable = Path(folder).name == "bin"
            (Path(folder) / name).chmod(0o755 if executable else 0o644)
    config = context / "files/etc/containerd/config.toml"
    # Without CAP_SYS_RESOURCE nothing can be protected from the out-of-memory killer; harmless elsewhere.
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace("restrict_oom_score_adj = false", "restrict_oom_score_adj = true"), encoding="utf-8")
    (context / "files/kind/manifests").mkdir(parents=True)
    shutil.copy(RECIPE / "storage.yaml", context / "files/kind/manifests/default-storage.yaml")
    (context / "files/kind/version").write_text(f"v{versions.KUBERNETES}", encoding="utf-8")
    for folder, wanted in _ON_THE_NODE.items():
        (context / folder).mkdir()
        for name in wanted:
            shutil.copy(programs[name], context / folder / name)
    shutil.copy(RECIPE / "Dockerfile", context / "Dockerfile")
    tag = "diloco-kind-node:plain"
    run("docker", "build", "--tag", tag, "--build-arg", f"BASE={base}", context)
    return tag


def _images(work: Path, helper: str, files: Path, programs: dict[str, Path]) -> list[str]:
    """The images that run on a node, by the names that kubeadm, containerd and the storage's manifest call them."""
    listed = run(programs["kubeadm"], "config", "images", "list", "--kubernetes-version", f"v{versions.KUBERNETES}")
    names = [image_for(program, listed.split()) for program in _CONTROL_PLANE]
    for program, name in zip(_CONTROL_PLANE, names, strict=True):
        base = helper if program == "kube-proxy" else "scratch"
        _one_program(work / program, programs[program], base, name)
    sandbox = sandbox_image((files / "etc/containerd/config.toml").read_text(encoding="utf-8"))
    _one_program(work / "pause", programs["pause"], "scratch", sandbox, starts=True)
    storage = "local-path-provisioner"
    _one_program(work / storage, programs[storage], "scratch", _STORAGE[storage])
    run("docker", "tag", helper, _STORAGE["helper"])
    return [*names, sandbox, *_STORAGE.values()]


def _one_program(context: Path, program: Path, base: str, name: str, *, starts: bool = False) -> None:
    (context / "program").mkdir(parents=True)
    shutil.copy(program, context / "program" / program.name)
    text = (RECIPE / "program.Dockerfile").read_text(encoding="utf-8")
    # kubeadm's and the storage's manifests name their commands; coredns' and a sandbox's do not.
    if starts or program.name == "coredns":
        text += f'ENTRYPOINT ["/usr/local/bin/{program.name}"]\n'
    (context / "Dockerfile").write_text(text, encoding="utf-8")
    run("docker", "build", "--tag", name, "--build-arg", f"BASE={base}", context)


def _commit(plain: str, images: list[str], unpacked: list[str], name: str) -> None:
    """Import ``images`` into the containerd of ``plain``, and ``unpacked`` as pods use it."""
    container = f"diloco-kind-node-{uuid.uuid4().hex[:8]}"
    # A volume, as containerd unpacks nothing onto a container's own file system.
    options = ("--detach", "--privileged", "--volume", _UNPACKING, "--name", container, "--entrypoint", "sleep")
    run("docker", "run", *options, plain, "infinity")
    try:
        run("docker", "exec", "--detach", container, "containerd", "--root", _UNPACKING)
        _await_containerd(container)
        command = ("docker", "exec", "-i", container, "ctr", "-n", "k8s.io", "images", "import", "--all-platforms")
        managed = ("--label=io.cri-containerd.image=managed", "--no-unpack", "--digests", "-")
        pipe(("docker", "save", *images), (*command, *managed))
        pipe(("docker", "save", *unpacked), (*command, UNPACK, "--digests", "-"))
        run("docker", "exec", container, "pkill", "--exact", "containerd")
        run("docker", "exec", container, "sh", "-c", "while pidof containerd; do sleep 0.1; done")
        run("docker", "exec", container, "cp", "--archive", f"{_UNPACKING}/.", "/var/lib/containerd")
        entry = 'ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]'
        run("docker", "commit", "--change", entry, "--change", "CMD []", container, name)
    finally:
        run("docker", "rm", "--force", "--volumes", container)


def _forget_older(name: str) -> None:
    """Remove node images of other versions: gigabytes each. The engine keeps one that a container has."""
    listed = run("docker", "image", "ls", "--format", "{{.Repository}}:{{.Tag}}", f"{_REPOSITORY}:v*").split()
    for other in listed:
        if other != name:
            succeeds("docker", "image", "rm", other)


def _await_containerd(container: str) -> None:
    end = time.monotonic() + 60
    while not succeeds("docker", "exec", container, "ctr", "version"):
        if time.monotonic() > end:
            raise CommandFailedError(("containerd",), -1, "containerd does not start in a node's container")
        time.sleep(0.2)


def image_for(program: str, listed: list[str]) -> str:
    """The name that kubeadm gives the image of a program.

    Raises:
        ValueError: kubeadm names none, or more than one.
    """
    names = [name for name in listed if name.rpartition("/")[2].partition(":")[0] == program]
    if len(names) != 1:
        raise ValueError(f"kubeadm names {len(names)} images of {program}: {', '.join(listed)}")
    return names[0]


def sandbox_image(containerd_config: str) -> str:
    """The image that containerd starts each pod with.

    Raises:
        ValueError: The configuration names none.
    """
    found = re.search(r'^\s*sandbox(?:_image)? = "([^"]+)"', containerd_config, re.MULTILINE)
    if found is None:
        raise ValueError("containerd's configuration names no sandbox image")
    return found[1]
