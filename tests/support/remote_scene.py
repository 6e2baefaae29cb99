"""Remote clusters of a job, on two real API servers: a home, and another one with an account for the operator."""

import asyncio
import base64
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any

import yaml

from diloco_operator import labels
from diloco_operator.api_server.cache import GroupKey
from diloco_operator.api_server.errors import ApiError, Call
from diloco_operator.api_server.kinds import (
    CLAIM,
    CONFIG_MAP,
    CORE_EVENT,
    LEASE,
    NAMESPACE,
    POD,
    REMOTE_CHILDREN,
    SECRET,
    SERVICE_ACCOUNT,
    Kind,
    Object,
)
from diloco_operator.api_server.requests import RequestHooks
from diloco_operator.cluster_state import CLUSTER_LABEL, ClusterSeen, ClusterState
from diloco_operator.clusters.home import ClusterKey
from diloco_operator.clusters.registry import HomeSide, RemoteClusters
from diloco_operator.clusters.remote import RemoteCluster
from diloco_operator.clusters.slots import Claim
from testbed.api_server.server import ApiServer
from tests.support.kubeconfigs import kubeconfig
from tests.support.operator_scene import api_at

ACCOUNT = "ops"
HOME_ID = "this-home"
PATIENCE_SECONDS = 90.0
VERBS = ["get", "list", "watch", "create", "patch", "delete"]
RBAC = "rbac.authorization.k8s.io"
ROLE, ROLE_BINDING = Kind("Role", "roles", RBAC, "v1"), Kind("RoleBinding", "rolebindings", RBAC, "v1")


@dataclass
class Far:
    """The other cluster: a namespace of its own, with an account and a Role."""

    server: ApiServer
    namespace: str = field(default_factory=lambda: f"far-{uuid.uuid4().hex[:8]}")
    seconds: int = 3600
    """The life of tokens."""

    def __post_init__(self) -> None:
        self.server.put(NAMESPACE.path(None), {"metadata": {"name": self.namespace}})
        self.make_account()
        self.allow()
        reference = {"apiGroup": RBAC, "kind": "Role", "name": ACCOUNT}
        subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": self.namespace}
        self._put(ROLE_BINDING, roleRef=reference, subjects=[subject])
        self.server.until_rules_hold()

    def make_account(self) -> None:
        self._put(SERVICE_ACCOUNT)

    def remove_account(self) -> None:
        assert self.server.request("DELETE", SERVICE_ACCOUNT.path(self.namespace, ACCOUNT))[0] == HTTPStatus.OK

    def allow(self, *withheld: tuple[str, str], renewal: bool = False, lost_pods: bool = False) -> None:
        """Allow everything needed but these verbs on these resources.

        With `renewal`, tokens of the account too; with `lost_pods`, to look at pods, delete them, and list claims.
        """
        rules = []
        for kind in REMOTE_CHILDREN:
            verbs = [verb for verb in VERBS if (verb, kind.plural) not in withheld]
            rules.append({"apiGroups": [kind.group], "resources": [kind.plural], "verbs": verbs})
        verbs = [verb for verb in ("get", "create", "update") if (verb, LEASE.plural) not in withheld]
        rules.append({"apiGroups": [LEASE.group], "resources": [LEASE.plural], "verbs": verbs})
        if renewal:
            resources = [f"{SERVICE_ACCOUNT.plural}/token"]
            rules.append({"apiGroups": [""], "resources": resources, "resourceNames": [ACCOUNT], "verbs": ["create"]})
        if lost_pods:
            for kind, verbs in ((POD, ["list", "delete"]), (CORE_EVENT, ["list"]), (CLAIM, ["list"])):
                rules.append({"apiGroups": [kind.group], "resources": [kind.plural], "verbs": verbs})
        self._put(ROLE, rules=rules)
        self.server.until_rules_hold()

    def token(self) -> str:
        path = SERVICE_ACCOUNT.path(self.namespace, ACCOUNT, "token")
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
        status, made = self.server.request("POST", path, {**body, "spec": {"expirationSeconds": self.seconds}})
        assert status < 300, made
        return str(made["status"]["token"])

    def kubeconfig(self, **user: Any) -> dict[str, Any]:
        """With a new token, unless other credentials are given."""
        given = user or {"token": self.token()}
        return kubeconfig(self.server.authority, self.server.url, self.namespace, **given)

    def has(self, kind: Kind, name: str) -> bool:
        return self.server.request("GET", kind.path(self.namespace, name))[0] == 200

    def _put(self, kind: Kind, **fields: Any) -> None:
        """Make or change the account's object of this kind."""
        self.server.put(kind.path(self.namespace), {"metadata": {"name": ACCOUNT}, **fields})


@dataclass
class Scene:
    """A job at home that names clusters."""

    home: ApiServer
    clusters: RemoteClusters
    job: GroupKey
    told: list[GroupKey] = field(default_factory=list)
    requests: list[Call] = field(default_factory=list)
    """To other clusters."""
    later: Callable[[], timedelta] = timedelta
    """How far its clock is ahead."""

    def secret(self, name: str, config: object, *, labelled: bool = True, key: str = "kubeconfig") -> None:
        """Create or change the Secret with a kubeconfig."""
        content = config if isinstance(config, str) else yaml.safe_dump(config)
        metadata = {"name": name, "labels": {CLUSTER_LABEL: ""} if labelled else {}}
        data = {key: base64.b64encode(content.encode()).decode()}
        self.home.put(SECRET.path(self.job.namespace), {"metadata": metadata, "data": data})

    async def reach(self, far: Far, name: str = "far") -> ClusterSeen:
        """Name a cluster, whose kubeconfig has a new token, and wait until it is ready."""
        self.secret(name, far.kubeconfig())
        self.use(name)
        return await self.becomes(ClusterState.READY, name)

    def use(self, *names: str, job: GroupKey | None = None) -> None:
        """Have a job, else the scene's, name these clusters and no others."""
        of = job or self.job
        self.clusters.use(of, {ClusterKey(of.namespace, name): Claim(new=True, created="") for name in names})

    def seen(self, name: str = "far") -> ClusterSeen:
        return self.clusters.seen(self.job.namespace, name)

    def remote(self, name: str = "far") -> RemoteCluster:
        found = self.clusters.handle(self.job.namespace, name)
        assert found is not None
        return found

    def token(self, name: str = "far") -> str:
        """The token in use; empty: there is none."""
        remote = self.clusters.handle(self.job.namespace, name)
        session = None if remote is None else remote.session
        return "" if session is None else session.config.token

    async def until(self, what: str, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            assert time.monotonic() < deadline, f"{what}: {self.seen()}"
            await asyncio.sleep(0.05)

    async def becomes(self, state: ClusterState, name: str = "far") -> ClusterSeen:
        await self.until(f"{name} is {state}", lambda: self.seen(name).settled and self.seen(name).state is state)
        return self.seen(name)

    async def write(self, object_name: str, name: str = "far") -> ApiError | None:
        """Write an object there, as the operator does; returns its failure, which is taken in."""
        remote = self.remote(name)
        assert remote.session is not None
        body = config_map(remote.session.config.namespace, object_name)
        try:
            await remote.session.api.apply(CONFIG_MAP, body)
        except ApiError as error:
            remote.failed(error)
            return error
        return None

    def cached(self, name: str = "far") -> set[str]:
        cache = self.remote(name).cache
        assert cache is not None
        group = GroupKey(self.seen(name).namespace, self.job.value)
        return {key.name for key, _ in cache.group(group)}


def config_map(namespace: str, name: str, home: str = HOME_ID) -> Object:
    """One object of the scene's job in another cluster."""
    marks = {labels.MANAGED_BY: labels.FIELD_MANAGER, labels.JOB: "job", labels.HOME: home}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"namespace": namespace, "name": name, "labels": marks},
        "data": {"a": "b"},
    }


class _Dated(RemoteClusters):
    """At home, the store has come this far."""

    def __init__(self, home: HomeSide, version: int) -> None:
        super().__init__(home)
        self._version = version

    def home_version(self) -> int:
        return self._version


@asynccontextmanager
async def scene_at(
    home: ApiServer, namespace: str, identity: str = "scene", version: int | None = None
) -> AsyncIterator[Scene]:
    """A scene within an ``async with``; ``version``: how far its store has come, if it is not as home's."""
    async with api_at(home.kubeconfig) as api:
        job = GroupKey(namespace, "job")

        async def home_id() -> str:
            return HOME_ID

        told: list[GroupKey] = []
        requests: list[Call] = []
        scene: Scene
        side = HomeSide(
            api=api,
            namespaces=(namespace,),
            find_id=home_id,
            changed=told.append,
            hooks=RequestHooks(answered=lambda call, _code, _seconds: requests.append(call)),
            clock=time.monotonic,
            now=lambda: datetime.now(UTC) + scene.later(),
            operator="system/diloco-operator",
            identity=identity,
            probe_seconds=1.0,
        )
        clusters = RemoteClusters(side) if version is None else _Dated(side, version)
        scene = Scene(home, clusters, job, told, requests)
        running = asyncio.create_task(scene.clusters.run())
        try:
            yield scene
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
