"""What remote clusters need from home: this home's id, and the Secrets with kubeconfigs."""

import base64
import binascii
import hashlib
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from diloco_operator.api_server.api import Api
from diloco_operator.api_server.errors import NotFoundError
from diloco_operator.api_server.kinds import NAMESPACE, SECRET, Object
from diloco_operator.cluster_state import CLUSTER_LABEL, DEFAULT_KEY, IN_USE, cluster_name
from diloco_operator.clusters.kubeconfig import MAXIMUM_BYTES, Kubeconfig, KubeconfigError, parse
from diloco_operator.clusters.tokens import TokenClaims
from diloco_operator.objects import labels_of, uid_of

RENEWED: Final = ".renewed"
"""Appended to a kubeconfig's key in its Secret: the key of its renewed token, whose value is ``DIGEST TOKEN``."""


class ClusterKey(NamedTuple):
    """A remote cluster: a kubeconfig in a namespace of home."""

    namespace: str
    """The Secret's, and the jobs'."""
    secret: str
    key: str = DEFAULT_KEY

    @property
    def name(self) -> str:
        """Its name for the jobs of its namespace."""
        return cluster_name(self.secret, self.key)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


async def home_id(api: Api) -> str:
    """This home's id: the uid of a namespace that each cluster has for as long as it lasts.

    It is of the cluster, not of an operator: whichever operator acts finds what any of them made in other clusters.

    Raises:
        ApiError: it cannot be read.
    """
    return uid_of(await api.get(NAMESPACE, None, "kube-system"))


@dataclass(frozen=True, slots=True)
class StoredKubeconfig:
    """A kubeconfig as its Secret has it, with the token that has replaced its own, if there is one."""

    config: Kubeconfig
    digest: str
    """Of the kubeconfig's text: what a renewed token belongs to."""
    secret_uid: str
    deleted: bool = False
    """The Secret stays only because it is used."""


@dataclass(frozen=True, slots=True)
class HomeSecrets:
    """The Secrets of home with kubeconfigs. The renewed token of one is beside it, under another key."""

    api: Api

    async def kubeconfig(self, key: ClusterKey) -> StoredKubeconfig:
        """The kubeconfig of a cluster, whose Secret stays from now on until it is released, even if it is deleted.

        Raises:
            KubeconfigError: there is none, or it cannot be used.
            ApiError: the Secret cannot be read or kept.
        """
        try:
            secret = await self.api.get(SECRET, key.namespace, key.secret)
        except NotFoundError:
            raise KubeconfigError(
                f"Secret {key.secret}: is not in namespace {key.namespace}; use `diloco cluster kubeconfig` to make it"
            ) from None
        if CLUSTER_LABEL not in labels_of(secret):
            # Without the label a job could use every Secret of its namespace.
            await self.release(secret)
            raise KubeconfigError(f"Secret {key.secret}: has no label {CLUSTER_LABEL}; use kubectl label to add it")
        data = secret.get("data") or {}
        encoded = data.get(key.key)
        if not encoded:
            raise KubeconfigError(f"Secret {key.secret}: has no key {key.key}; use a kubeconfig as its value")
        if len(encoded) > 2 * MAXIMUM_BYTES:
            raise KubeconfigError(f"Secret {key.secret}: {key.key} is more than {MAXIMUM_BYTES >> 10} KiB; use less")
        content = _decoded(encoded)
        config, digest = parse(content), hashlib.sha256(content).hexdigest()
        of, _, token = _decoded(data.get(f"{key.key}{RENEWED}") or "").decode("ascii", "replace").partition(" ")
        claims, later = TokenClaims.of(config.token), TokenClaims.of(token)
        # A token of another kubeconfig is not sent to this one's server.
        if of == digest and claims is not None and later is not None and claims.precedes(later):
            config = replace(config, token=token)
        # One that is being deleted takes no finalizer any more.
        deleted = "deletionTimestamp" in secret["metadata"]
        if not deleted:
            await self._finalize(secret, [IN_USE])
        return StoredKubeconfig(config, digest, uid_of(secret), deleted)

    async def release(self, secret: Object) -> None:
        """Let a Secret be deleted.

        Raises:
            ConflictError: it has changed.
            ApiError: it cannot be written.
        """
        await self._finalize(secret, [])

    async def _finalize(self, secret: Object, ours: list[str]) -> None:
        metadata = secret["metadata"]
        before = metadata.get("finalizers", [])
        wanted = [*(one for one in before if one != IN_USE), *ours]
        if set(wanted) != set(before):
            this = {key: metadata[key] for key in ("namespace", "name", "resourceVersion")}
            await self.api.overwrite(SECRET, {"metadata": {**this, "finalizers": wanted}})

    async def keep_token(self, key: ClusterKey, stored: StoredKubeconfig, token: str) -> None:
        """Keep a token that replaces that of a kubeconfig.

        Raises:
            ConflictError: there is another Secret of this name by now.
            ApiError: the Secret cannot be written.
        """
        value = base64.b64encode(f"{stored.digest} {token}".encode()).decode()
        metadata = {"namespace": key.namespace, "name": key.secret, "uid": stored.secret_uid}
        await self.api.overwrite(SECRET, {"metadata": metadata, "data": {f"{key.key}{RENEWED}": value}})


def _decoded(encoded: str) -> bytes:
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return b""
