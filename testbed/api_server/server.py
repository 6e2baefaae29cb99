"""A real API server for tests: etcd and kube-apiserver as processes of this machine, without nodes or controllers.

It stores, validates, defaults and forbids exactly what a cluster's server would. Nothing acts on its objects: no pod is
started, nothing is garbage-collected.

    with api_server() as server:
        server.kubectl("apply", "--filename=-", text=manifest)
        other = server.kubeconfig_for("system:serviceaccount:system:operator", ["system:serviceaccounts"])
        server.stop(); server.start()       # it is away for a while; what it stored stays
"""

import http.client
import json
import os
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
import yaml

from diloco.local.launch import free_ports
from testbed.api_server.certificates import Authority
from testbed.api_server.kubeconfigs import kubeconfig
from testbed.kind import go_programs
from testbed.kind.cache import Cache
from testbed.kind.waiting import wait_until

DEFINITION = Path(__file__).resolve().parents[2] / "crds" / "dilocojobs.diloco.dev.yaml"
NEEDED = ("etcd", "kube-apiserver", "kubectl")
ASSETS = "KUBEBUILDER_ASSETS"

_STARTING_SECONDS = 120.0
"""On an idle machine a kube-apiserver is ready in 5 s."""
_STOPPING_SECONDS = 20.0
_ATTEMPTS = 3
"""A free port may be taken before it is used, so a start is retried."""


class ApiServerError(RuntimeError):
    """The server did not start; the message ends with the end of its log."""


def _found(name: str) -> str | None:
    # The first is where envtest's tools say that the programs are which they have downloaded.
    folders = (os.environ.get(ASSETS, ""), str(go_programs.folder(Cache.of_user())), os.environ.get("PATH", ""))
    return shutil.which(name, path=os.pathsep.join(folder for folder in folders if folder))


def why_there_is_none() -> str | None:
    """What is missing to run an API server here, as a reason to skip tests; None: nothing."""
    missing = [name for name in NEEDED if _found(name) is None]
    if not missing:
        return None
    built = "among the programs built for clusters (testbed/kind)"
    return f"no API server here: {', '.join(missing)} found neither in ${ASSETS}, {built}, nor on $PATH"


@contextmanager
def api_server(*flags: str) -> Iterator["ApiServer"]:
    """A new API server, empty and ready, which is removed afterwards. `flags` are those of kube-apiserver besides ours.

    Raises:
        ApiServerError: it does not come up.
    """
    if reason := why_there_is_none():
        raise ApiServerError(reason)
    with tempfile.TemporaryDirectory(prefix="api-server-") as directory:
        server = ApiServer(Path(directory), flags)
        try:
            server.start()
            yield server
        finally:
            server.end()


@contextmanager
def job_api_server() -> Iterator["ApiServer"]:
    """As ``api_server``, with the committed definition of DiLoCoJobs installed.

    Raises:
        ApiServerError: it does not come up.
    """
    with api_server() as server:
        server.kubectl("create", f"--filename={DEFINITION}")
        # kubectl gives up on a definition that has no status yet.
        established = ("wait", "--for=condition=Established", f"crd/{DEFINITION.stem}")
        wait_until(lambda: not server.kubectl(*established, check=False).returncode, " ".join(established))
        # Published a moment after the definition is established; a kubectl that validates or explains reads it.
        wait_until(lambda: not server.kubectl("explain", "dlj", check=False).returncode, "kubectl explain dlj")
        # Jobs have a store of their own, which a busy server is still making: 429 until then.
        jobs = "/apis/diloco.dev/v1alpha1/dilocojobs"
        wait_until(lambda: server.request("GET", jobs)[0] == http.HTTPStatus.OK, "jobs can be listed")
        yield server


class ApiServer:
    """One etcd and one kube-apiserver, on ports of 127.0.0.1, with RBAC."""

    def __init__(self, directory: Path, flags: Sequence[str] = ()) -> None:
        self.directory = directory
        self._flags = flags
        self._authority = Authority(directory)
        self._serving = self._authority.leaf("server", hosts=["127.0.0.1", "localhost"])
        self._ports: dict[str, int] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.kubeconfig = directory / "admin.kubeconfig"
        """Kubeconfig of a user with all permissions."""

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._ports['api']}"

    def start(self) -> None:
        """Start it, also again after ``stop``, on the same port.

        Raises:
            ApiServerError: it does not come up.
        """
        if self._ports:
            self._start_api()
            return
        for attempt in range(_ATTEMPTS):
            try:
                self._start_all()
            except ApiServerError:
                self.end()
                if attempt == _ATTEMPTS - 1:
                    raise
            else:
                return

    def stop(self) -> None:
        """End only kube-apiserver, so that the server is not reachable."""
        self._end("kube-apiserver")

    def pause(self) -> None:
        """Freeze kube-apiserver: it accepts connections and answers nothing."""
        process = self._processes["kube-apiserver"]
        process.send_signal(signal.SIGSTOP)
        # On a busy machine some of its threads go on for a moment, and may answer.
        wait_until(lambda: _is_stopped(process.pid), "kube-apiserver is stopped")

    def resume(self) -> None:
        """Let it go on after a pause; it answers when this returns."""
        process = self._processes["kube-apiserver"]
        if psutil.Process(process.pid).status() == psutil.STATUS_STOPPED:
            process.send_signal(signal.SIGCONT)
            self._wait_until_ready()

    @property
    def authority(self) -> Path:
        """The certificate that the server's own comes from."""
        return self._authority.certificate

    def end(self) -> None:
        """End both for good."""
        self.stop()
        self._end("etcd")
        self._ports = {}

    def kubeconfig_for(self, user: str, groups: Sequence[str] = ()) -> Path:
        """The kubeconfig of another user, with the permissions that RBAC gives to that user and those groups."""
        name = user.replace(":", "-").replace("/", "-")
        path = self.directory / f"{name}.kubeconfig"
        self._write_kubeconfig(path, user, groups)
        return path

    def kubectl(
        self, *arguments: str, text: str | None = None, check: bool = True, kubeconfig: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """``kubectl ARGUMENTS`` with ``text`` as its input.

        Raises:
            AssertionError: it failed and ``check`` is set; the text has its output.
        """
        command = [str(_found("kubectl")), f"--kubeconfig={kubeconfig or self.kubeconfig}", *arguments]
        # A cache of its own: that in the home folder may be of another server on the same port.
        environment = {**os.environ, "KUBECACHEDIR": str(self.directory / "kubectl-cache")}
        done = subprocess.run(command, check=False, capture_output=True, text=True, input=text, env=environment)
        assert not (check and done.returncode), f"{' '.join(command[2:])}: {done.stderr}"
        return done

    def request(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Status and JSON answer of one HTTPS request as the admin: far faster than hundreds of calls of kubectl."""
        status, answer = self._answer(method, path, json.dumps(body), timeout_seconds=120)
        return status, json.loads(answer)

    def put(self, path: str, body: Mapping[str, Any]) -> Any:
        """Create an object at the path of its kind, or replace it; the server's answer.

        Raises:
            AssertionError: it is refused.
        """
        status, answer = self.request("POST", path, body)
        if status == http.HTTPStatus.CONFLICT:
            there = f"{path}/{body['metadata']['name']}"
            version = self.request("GET", there)[1]["metadata"]["resourceVersion"]
            metadata = {**body["metadata"], "resourceVersion": version}
            status, answer = self.request("PUT", there, {**body, "metadata": metadata})
        assert status < http.HTTPStatus.BAD_REQUEST, answer
        return answer

    def bind(self, role: str, user: str, namespace: str) -> None:
        """Give a user the rules of a Role of this namespace; they hold when this returns."""
        who = (f"--role={role}", f"--user={user}", f"--namespace={namespace}")
        self.kubectl("create", "rolebinding", f"{role}-{user}", *who)
        self.until_rules_hold()

    def until_rules_hold(self) -> None:
        """Wait until the server acts on all roles and bindings that it has: it reads its own changes a moment late.

        It reads the changes of each kind in their order, so rules that are newer than all others show that it has.
        """
        name, api = f"probe-{uuid.uuid4().hex}", "/apis/rbac.authorization.k8s.io/v1"
        subject = {"kind": "User", "name": name, "apiGroup": "rbac.authorization.k8s.io"}
        for kind, base in (("Role", f"{api}/namespaces/default/"), ("ClusterRole", f"{api}/cluster")):
            rules = [{"apiGroups": [""], "resources": [kind], "verbs": ["probe"]}]
            self.put(f"{base}roles", {"metadata": {"name": name}, "rules": rules})
            bound = {"roleRef": {"kind": kind, "name": name}, "subjects": [subject]}
            self.put(f"{base}rolebindings", {"metadata": {"name": name}, **bound})

        def holds() -> bool:
            asked = ({"verb": "probe", "resource": kind, "namespace": "default"} for kind in ("Role", "ClusterRole"))
            reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
            bodies = ({"spec": {"user": name, "resourceAttributes": attributes}} for attributes in asked)
            return all(self.request("POST", reviews, body)[1]["status"]["allowed"] for body in bodies)

        wait_until(holds, "the server acts on its roles and bindings")

    def set_status(self, path: str, status: Mapping[str, Any]) -> None:
        """Change the status of the object at this path, as a controller does."""
        code, answer = self.request("PATCH", f"{path}/status", {"status": status})
        assert code < http.HTTPStatus.BAD_REQUEST, answer

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        tls = ssl.create_default_context(cafile=str(self._authority.certificate))
        tls.load_cert_chain(self.directory / "admin.crt", self.directory / "admin.key")
        return tls

    def _start_all(self) -> None:
        self._ports = dict(zip(("api", "etcd", "peer"), free_ports(3), strict=True))
        client, peer = (f"http://127.0.0.1:{self._ports[name]}" for name in ("etcd", "peer"))
        self._spawn(
            "etcd",
            f"--data-dir={tempfile.mkdtemp(prefix='etcd-', dir=self.directory)}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
            "--log-level=error",
        )
        self._write_kubeconfig(self.kubeconfig, "admin", ["system:masters"])
        self._start_api()

    def _start_api(self) -> None:
        self._spawn(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._ports['etcd']}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self._ports['api']}",
            f"--cert-dir={self.directory}",
            f"--tls-cert-file={self._serving.certificate}",
            f"--tls-private-key-file={self._serving.key}",
            f"--client-ca-file={self._authority.certificate}",
            f"--service-account-key-file={self._serving.certificate}",
            f"--service-account-signing-key-file={self._serving.key}",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=RBAC",
            # No controller creates the service accounts that it would require.
            "--disable-admission-plugins=ServiceAccount",
            # So that a server that is stopped while clients watch it ends at once.
            "--shutdown-delay-duration=0s",
            *self._flags,
        )
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _STARTING_SECONDS
        while not self._is_ready():
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise ApiServerError(f"{name} ended with {process.returncode}: {self._log_end(name)}")
            if time.monotonic() > deadline:
                raise ApiServerError(f"not ready after {_STARTING_SECONDS:.0f} s: {self._log_end('kube-apiserver')}")
            time.sleep(0.2)

    def _is_ready(self) -> bool:
        # The namespace is made just after the server says that it is ready; nearly every test needs it.
        paths = ("/readyz", "/api/v1/namespaces/default")
        try:
            return all(self._answer("GET", path, timeout_seconds=10)[0] == http.HTTPStatus.OK for path in paths)
        except (OSError, http.client.HTTPException):
            return False

    def _answer(self, method: str, path: str, body: str | None = None, *, timeout_seconds: float) -> tuple[int, bytes]:
        port = self._ports["api"]
        connection = http.client.HTTPSConnection("127.0.0.1", port, context=self._tls, timeout=timeout_seconds)
        try:
            content = "application/merge-patch+json" if method == "PATCH" else "application/json"
            connection.request(method, path, body, {"Content-Type": content})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def _spawn(self, name: str, *arguments: str) -> None:
        with (self.directory / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [str(_found(name)), *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory
            )

    def _end(self, name: str) -> None:
        process = self._processes.pop(name, None)
        if process is None:
            return
        process.terminate()
        # One that is paused takes the first signal only when it goes on.
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(_STOPPING_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _log_end(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text(encoding="utf-8", errors="replace")[-2000:]

    def _write_kubeconfig(self, path: Path, user: str, groups: Sequence[str]) -> None:
        leaf = self._authority.leaf(path.name.removesuffix(".kubeconfig"), user=user, groups=groups)
        cluster = {"server": self.url, "certificate-authority": str(self._authority.certificate)}
        credentials = {"client-certificate": str(leaf.certificate), "client-key": str(leaf.key)}
        path.write_text(yaml.safe_dump(kubeconfig(cluster, credentials)), encoding="utf-8")


def _is_stopped(pid: int) -> bool:
    """Whether every thread of a process is stopped."""
    stats = [(task / "stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)
