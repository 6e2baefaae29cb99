"""A registry of this machine, for the documentation's `docker push registry.example/...` and for the nodes' pulls.

The engine finds it by a line in /etc/hosts: on addresses of this machine it expects registries without TLS. Nodes find
it by a file of their containerd. And while the registry runs, `python:3.12-slim`, which the Dockerfile builds on if it
is told nothing else, is an image of Debian's packages: the published one may be out of reach, and is without torch.

Blobs are kept for the next registry: the engine compresses a layer anew for one that lacks it, torch's for minutes.
"""

import os
import subprocess
import time
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from testbed.kind import docker_network, go_programs
from testbed.kind.cache import Cache
from testbed.kind.commands import Unavailable, environment, run
from testbed.kind.project_images import base
from testbed.kind.waiting import wait_until

NAME = "registry.example"
"""What the documentation calls it; no real registry can have this name (RFC 2606)."""
PUBLISHED_BASE = "python:3.12-slim"
_SOURCES = Path(__file__).with_name("registry")
_HOSTS = Path("/etc/hosts")
_ADDRESS = "127.101.0.1"
"""One of loopback's, on which nothing else listens at port 80."""
_PORT = 5101
_NODES_FILE = f"/etc/containerd/certs.d/{NAME}/hosts.toml"
_KEPT_SECONDS = 7 * 24 * 3600.0


@contextmanager
def running(cache: Cache, nodes: Iterable[str]) -> Iterator[None]:
    """The registry, for the engine and ``nodes``. What changes on this machine and on the nodes is undone.

    Raises:
        Unavailable: It cannot be built, or this user may not write /etc/hosts.
    """
    if not os.access(_HOSTS, os.W_OK):
        raise Unavailable(f"only root may name {NAME} in {_HOSTS}")
    program = go_programs.build_apart(cache, _SOURCES)
    gateway = run(
        *("docker", "network", "inspect", docker_network.NAME, "--format", "{{(index .IPAM.Config 0).Gateway}}")
    ).strip()
    with ExitStack() as at_the_end, cache.lock("registry"):
        folder = cache.folder("registry")
        _forget_old(folder)
        command = (str(program), str(folder), f"{_ADDRESS}:80", f"{gateway}:{_PORT}")
        process = at_the_end.enter_context(subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment({})))
        at_the_end.callback(process.terminate)
        at_the_end.enter_context(_known_to_the_engine())
        for node in nodes:
            at_the_end.enter_context(_known_to(node, f"http://{gateway}:{_PORT}"))
        at_the_end.enter_context(_tagged(base(), PUBLISHED_BASE))
        at_the_end.callback(_forget_pushed)
        wait_until(_answers, "the registry answers", 30)
        yield


def _forget_old(folder: Path) -> None:
    oldest = time.time() - _KEPT_SECONDS
    for path in folder.rglob("*"):
        if path.is_file() and path.stat().st_mtime < oldest:
            path.unlink()


def _answers() -> bool:
    # No proxy stands between this machine and itself, whatever the environment says.
    directly = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with suppress(OSError), directly.open(f"http://{_ADDRESS}/v2/", timeout=5):
        return True
    return False


@contextmanager
def _known_to_the_engine() -> Iterator[None]:
    line = f"{_ADDRESS} {NAME}\n"
    with _HOSTS.open("a", encoding="utf-8") as file:
        file.write(line)
    try:
        yield
    finally:
        # Not replaced by another file: in a container it is a mount.
        _HOSTS.write_text(_HOSTS.read_text(encoding="utf-8").replace(line, ""), encoding="utf-8")


@contextmanager
def _known_to(node: str, url: str) -> Iterator[None]:
    script = f'mkdir -p "$(dirname {_NODES_FILE})" && cat > {_NODES_FILE}'
    run("docker", "exec", "-i", node, "sh", "-c", script, stdin=f'server = "{url}"\n')
    try:
        yield
    finally:
        run("docker", "exec", node, "rm", _NODES_FILE)


def _forget_pushed() -> None:
    """The engine keeps no image that was built under the registry's name."""
    filters = (f"--filter=reference={NAME}/{path}" for path in ("*", "*/*"))
    if pushed := run("docker", "image", "ls", *filters, "--format", "{{.Repository}}:{{.Tag}}").split():
        run("docker", "image", "rm", *pushed)


@contextmanager
def _tagged(image: str, name: str) -> Iterator[None]:
    """``image`` is called ``name``, whatever had that name before, which has it again afterwards."""
    before = run("docker", "image", "ls", "--quiet", "--no-trunc", name).strip()
    run("docker", "tag", image, name)
    try:
        yield
    finally:
        run(*(("docker", "tag", before, name) if before else ("docker", "image", "rm", name)))
