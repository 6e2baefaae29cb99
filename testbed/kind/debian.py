"""Base images of Debian's packages: out of the published image of a release, or, where none can be pulled, debootstrap.

They are made as the host is: its mirror and proxy for apt, its certificate authorities, its settings of pip. Without
these nothing can be installed in a build on a host that reaches the network through them. Such images stay local.
"""

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from testbed.kind.commands import CommandFailedError, Unavailable, on_path, pipe, run, step, succeeds
from testbed.kind.digests import digest_of
from testbed.kind.engine import install_packages

CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
_APT_SETTINGS = ("Acquire::http", "Acquire::https", "Acquire::Check-", "Acquire::Retries")
_PIP_SETTINGS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries")
_UNNEEDED = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/lib/libtorch-test/*")
_LEFT = "/var/lib/apt/lists/* /var/cache/apt/* /usr/lib/python3/dist-packages/torch/bin/test_*"
"""Of an installation: what it downloaded, and tests that are programs."""
_PULL_SECONDS = 300.0
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


@dataclass(frozen=True)
class Base:
    """A release of Debian with some packages."""

    suite: str
    packages: tuple[str, ...]

    def tag(self, host: "Host") -> str:
        """What its image for that machine is called."""
        recipe = _dockerfile(self.suite, self.packages, host).encode()
        own = {"recipe": recipe, "layers": b"1", "architecture": platform.machine().encode()}
        return f"diloco-base-{self.suite}:{digest_of(own | host.parts)}"


# Debian's torch computes on CPUs: a fifth of the size of what the package index has for this platform. Without OpenBLAS
# it is fifty times slower.
TORCH = Base("trixie", ("python3", "python3-venv", "python3-torch", "libopenblas0-pthread", "ca-certificates"))
"""What both of the project's images are built on."""


@dataclass(frozen=True)
class Host:
    """What an image takes over from the machine it is made on."""

    ca_bundle: bytes
    apt_settings: str
    pip_settings: str
    mirror: str

    @classmethod
    @cache
    def read(cls) -> "Host":
        bundle = Path(os.environ.get("SSL_CERT_FILE", CA_BUNDLE))
        return cls(
            ca_bundle=bundle.read_bytes() if bundle.is_file() else b"",
            apt_settings=apt_settings(_or_nothing("apt-config", "dump")),
            pip_settings=pip_settings(_or_nothing(sys.executable, "-m", "pip", "config", "list")),
            mirror=_mirror(),
        )

    @property
    def parts(self) -> dict[str, bytes]:
        return {
            "ca_bundle": self.ca_bundle,
            "apt": self.apt_settings.encode(),
            "pip": self.pip_settings.encode(),
            "mirror": self.mirror.encode(),
        }


def image(base: Base, host: Host) -> str:
    """The tag of an image of ``base``, made if it is not there yet.

    Raises:
        Unavailable: It cannot be made here.
    """
    tag = base.tag(host)
    if not has_image(tag):
        with step(f"making {tag} ({', '.join(base.packages)})"):
            minimal = _minimal(base.suite, host)
            with tempfile.TemporaryDirectory() as folder:
                context = Path(folder)
                (context / "ca-certificates.crt").write_bytes(host.ca_bundle)
                (context / "apt.conf").write_text(host.apt_settings, encoding="utf-8")
                (context / "pip.conf").write_text(host.pip_settings, encoding="utf-8")
                (context / "Dockerfile").write_text(_dockerfile(minimal, base.packages, host), encoding="utf-8")
                try:
                    _flatten(run("docker", "build", "--quiet", *proxy_arguments(os.environ), context).strip(), tag)
                except CommandFailedError as error:
                    raise Unavailable(f"Debian packages cannot be installed into an image: {error.last_line}") from None
    return tag


def _flatten(built: str, tag: str) -> None:
    """One layer instead of several: a lone layer can be unpacked anywhere, also where overlays cannot be stacked."""
    container = run("docker", "create", built, "true").strip()
    try:
        pipe(("docker", "export", container), ("docker", "import", "-", tag))
    finally:
        run("docker", "rm", container)
        run("docker", "image", "rm", built)


def has_image(tag: str) -> bool:
    """Whether the engine has an image of this name."""
    return succeeds("docker", "image", "inspect", tag)


def proxy_arguments(env: Mapping[str, str]) -> list[str]:
    """Build arguments that every Dockerfile knows: what the host itself reaches the network through."""
    return [f"--build-arg={name}={env[name]}" for name in _PROXIES if env.get(name)]


def apt_settings(dump: str) -> str:
    """Of `apt-config dump`, the lines that say how packages are fetched."""
    lines = [line for line in dump.splitlines() if line.startswith(_APT_SETTINGS) and not line.endswith(' "";')]
    return "".join(f"{line}\n" for line in lines)


def pip_settings(listed: str) -> str:
    """Of `pip config list`, what says where packages come from, as a pip.conf; later lines win, as in pip."""
    values: dict[str, str] = {}
    for line in listed.splitlines():
        key, _, value = line.partition("=")
        values[key.rpartition(".")[2]] = value.strip("'\"").replace("\\n", "\n    ")
    values = {name: value for name, value in values.items() if name in _PIP_SETTINGS}
    lines = [f"{name} = {value}" for name, value in sorted(values.items())]
    return "\n".join(["[global]", f"cert = {CA_BUNDLE}", *lines, ""])


def _dockerfile(minimal: str, packages: Iterable[str], host: Host) -> str:
    install = f"DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends {' '.join(packages)}"
    # What no test needs is left out: an image is copied to every node of every cluster.
    excluded = " ".join(f"'path-exclude={path}'" for path in _UNNEEDED)
    lines = [
        f"FROM {minimal}",
        "COPY apt.conf /etc/apt/apt.conf.d/90host",
        f"RUN printf '%s\\n' {excluded} > /etc/dpkg/dpkg.cfg.d/90unneeded",
        f"RUN apt-get update && {install} && rm -rf {_LEFT}",
    ]
    if host.ca_bundle:
        lines += [f"COPY ca-certificates.crt {CA_BUNDLE}", "COPY pip.conf /etc/pip.conf"]
    return "\n".join([*lines, ""])


def _minimal(suite: str, host: Host) -> str:
    """A release's smallest system. Where it cannot be pulled, making it is all that needs root."""
    tag = f"diloco-base-{suite}:minimal"
    published = f"debian:{suite}-slim"
    if has_image(tag):
        return tag
    if has_image(published) or succeeds("docker", "pull", "--quiet", published, timeout_seconds=_PULL_SECONDS):
        return published
    if os.geteuid() != 0:
        raise Unavailable(f"{published} cannot be pulled, and only root could make the like (debootstrap)")
    if not on_path("debootstrap"):
        if not on_path("apt-get"):
            raise Unavailable(f"{published} cannot be pulled, and there is no debootstrap to make the like")
        install_packages("debootstrap")
    # Below /var/tmp: /tmp may be in memory, or may not allow device files.
    folder = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="diloco-base-"))
    try:
        root = folder / "root"
        mirror = [host.mirror] if host.mirror else []
        run("debootstrap", "--variant=minbase", suite, root, *mirror)
        for packed in (root / "var/cache/apt/archives").glob("*.deb"):
            packed.unlink()
        pipe(("tar", "-C", root, "-c", "."), ("docker", "import", "-", tag))
    except CommandFailedError as error:
        raise Unavailable(f"debootstrap {suite}: {error.last_line}") from None
    finally:
        shutil.rmtree(folder)
    return tag


def _mirror() -> str:
    """Where this machine, if it is a Debian, has its packages from."""
    release = Path("/etc/os-release")
    if not release.is_file() or "\nID=debian\n" not in f"\n{release.read_text(encoding='utf-8')}":
        return ""
    listed = _or_nothing("apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages", "Label: Debian")
    sites = [line for line in listed.splitlines() if line.startswith("http")]
    return sites[0] if sites else ""


def _or_nothing(*command: str) -> str:
    try:
        return run(*command, timeout_seconds=60)
    except CommandFailedError:
        return ""
