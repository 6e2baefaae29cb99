"""What remote clusters need from home: this home's id, and the Secrets with kubeconfigs and renewed tokens."""

import base64
import binascii
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from diloco_operator import labels
from diloco_operator.cluster.api import Api
from diloco_operator.cluster.errors import Call, ConflictError, NotFoundError
from diloco_operator.cluster.kinds import CONFIG_MAP, SECRET, Object
from diloco_operator.clusters.kubeconfig import MAXIMUM_BYTES, KubeconfigError
from diloco_operator.clusters.state import DEFAULT_KEY, cluster_name

CLUSTER: Final = "diloco.dev/cluster"
"""The label of Secrets whose kubeconfig jobs of their namespace may use. Its value does not matter."""
TOKEN_OF: Final = "diloco.dev/token-of"  # noqa: S105 # a name
"""The annotation of a Secret with a renewed token: a digest of the kubeconfig whose token it replaces."""
MOST_KEYS: Final = 16
"""Kubeconfigs that are looked for in a Secret that no job names."""
_ID_KEY: Final = "id"
_ID: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_TOKEN_KEY: Final = "token"  # noqa: S105 # a name


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


class BadHomeError(ValueError):
    """The id of this home cannot be used. The text is for the user."""


def new_home_id() -> str:
    """An id that no other home has."""
    return str(uuid.uuid4())


async def home_id(api: Api, namespace: str, name: str, make: Callable[[], str]) -> str:
    """This home's id, from a ConfigMap that is made once and that nothing deletes.

    The same operator installed again finds the same id, and with it what it left in other clusters.

    Raises:
        BadHomeError: the ConfigMap has no usable id.
        ApiError: it cannot be read or made.
    """
    try:
        found = await api.get(CONFIG_MAP, namespace, name)
    except NotFoundError:
        metadata = {"namespace": namespace, "name": name, "labels": {labels.MANAGED_BY: labels.FIELD_MANAGER}}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {_ID_KEY: make()}}
        try:
            found = await api.create(CONFIG_MAP, {**body, "immutable": True})
        except ConflictError:  # another process was quicker
            found = await api.get(CONFIG_MAP, namespace, name)
    known = (found.get("data") or {}).get(_ID_KEY)
    if not isinstance(known, str) or _ID.fullmatch(known) is None:
        raise BadHomeError(
            f"ConfigMap {namespace}/{name}: {_ID_KEY} is not an id; use at most 63 lower-case letters, digits and "
            "hyphens: the one that this home had before"
        )
    return known


@dataclass(frozen=True, slots=True)
class HomeSecrets:
    """The Secrets of home that are about clusters."""

    api: Api

    async def kubeconfig(self, key: ClusterKey) -> tuple[bytes, str]:
        """The kubeconfig of a cluster, and the uid of its Secret.

        Raises:
            KubeconfigError: there is none.
            ApiError: the Secret cannot be read.
        """
        try:
            secret = await self.api.get(SECRET, key.namespace, key.secret)
        except NotFoundError:
            raise KubeconfigError(
                f"Secret {key.secret}: is not in namespace {key.namespace}; use `diloco cluster kubeconfig` to make it"
            ) from None
        if CLUSTER not in (secret["metadata"].get("labels") or {}):
            # Without the label a job could use every Secret of its namespace.
            raise KubeconfigError(f"Secret {key.secret}: has no label {CLUSTER}; use kubectl label to add it")
        encoded = (secret.get("data") or {}).get(key.key)
        if not encoded:
            raise KubeconfigError(f"Secret {key.secret}: has no key {key.key}; use a kubeconfig as its value")
        if len(encoded) > 2 * MAXIMUM_BYTES:
            raise KubeconfigError(f"Secret {key.secret}: {key.key} is more than {MAXIMUM_BYTES >> 10} KiB; use less")
        return _decoded(encoded), str(secret["metadata"]["uid"])

    async def keys(self, namespace: str, secret: str) -> tuple[ClusterKey, ...]:
        """The clusters that a Secret may hold kubeconfigs of, the usual key first; none: there is no such Secret.

        Raises:
            ApiError: the Secret cannot be read.
        """
        try:
            found = await self.api.get(SECRET, namespace, secret)
        except NotFoundError:
            return ()
        if CLUSTER not in (found["metadata"].get("labels") or {}):
            return ()
        keys = sorted(found.get("data") or {}, key=lambda key: (key != DEFAULT_KEY, key))
        return tuple(ClusterKey(namespace, secret, key) for key in keys[:MOST_KEYS])

    async def renewed_token(self, key: ClusterKey, digest: str) -> str | None:
        """The token that replaces that of the kubeconfig with this digest; None: there is none.

        Raises:
            ApiError: the Secret cannot be read.
        """
        try:
            secret = await self.api.get(SECRET, key.namespace, token_secret(key))
        except NotFoundError:
            return None
        if (secret["metadata"].get("annotations") or {}).get(TOKEN_OF) != digest:
            return None
        return _decoded((secret.get("data") or {}).get(_TOKEN_KEY) or "").decode("ascii", "replace") or None

    async def keep_token(self, key: ClusterKey, digest: str, owner_uid: str, token: str) -> None:
        """Keep a token that replaces that of the kubeconfig with this digest.

        Raises:
            ConflictError: the Secret's name is taken by one that is not the operator's.
            ApiError: the Secret cannot be written.
        """
        there = await self.api.find_metadata(SECRET, key.namespace, token_secret(key))
        if there is not None and TOKEN_OF not in (there["metadata"].get("annotations") or {}):
            call = Call("patch", SECRET.resource, key.namespace, token_secret(key))
            raise ConflictError(call, f"there is one without the annotation {TOKEN_OF}")
        owner = {"apiVersion": "v1", "kind": "Secret", "name": key.secret, "uid": owner_uid}
        body: Object = {
            "apiVersion": SECRET.api_version,
            "kind": SECRET.name,
            "metadata": {
                "namespace": key.namespace,
                "name": token_secret(key),
                "labels": {labels.MANAGED_BY: labels.FIELD_MANAGER},
                "annotations": {TOKEN_OF: digest},
                "ownerReferences": [owner],
            },
            "type": "Opaque",
            "data": {_TOKEN_KEY: base64.b64encode(token.encode()).decode()},
        }
        await self.api.apply(SECRET, body)


def token_secret(key: ClusterKey) -> str:
    """The name of the Secret with a cluster's renewed token. No kubeconfig's Secret can have it: it has a dot."""
    return f"{key.secret}.{key.key.lower().replace('_', '-')}.token"


def _decoded(encoded: str) -> bytes:
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return b""
