"""What is known of a remote cluster, as a value: the state it is in, and since when that is known.

Home, the cluster of the operator itself, has no such value: without it the operator does nothing at all.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final


class ClusterState(StrEnum):
    """How a remote cluster answers. Every value but `READY` is a reason in conditions."""

    READY = "Ready"
    """It answers, and everything asked of it is allowed."""
    UNREACHABLE = "ClusterUnreachable"
    """No connection, no answer within the time limit, or 5xx."""
    UNTRUSTED = "ClusterUntrusted"
    """Its certificate is expired, or not of the authority in the kubeconfig."""
    UNAUTHORIZED = "ClusterUnauthorized"
    """It rejects the credentials in the kubeconfig (401)."""
    FORBIDDEN = "ClusterForbidden"
    """It accepts the credentials, but its rules do not allow everything (403)."""
    HELD_BY_OTHER = "ClusterHeldByOther"
    """A copy of home, or a later state of it, holds the Lease there."""
    UNSUITABLE = "ClusterUnsuitable"
    """It is too old, or lacks a kind of object without which no region can run."""
    KUBECONFIG_UNUSABLE = "KubeconfigUnusable"
    """The Secret, its key or its content is missing or refused. No request was sent."""
    TOO_MANY = "TooManyClusters"
    """Others take all the room that the operator has for clusters. No request was sent."""

    @property
    def takes_writes(self) -> bool:
        """Whether writes are sent at all. Of a forbidden cluster the outcome of each write counts."""
        return self in (ClusterState.READY, ClusterState.FORBIDDEN)


class Credential(StrEnum):
    """What a kubeconfig identifies its user with."""

    TOKEN = "token"  # noqa: S105 # a word
    CERTIFICATE = "client certificate"


@dataclass(frozen=True, slots=True)
class Expiring:
    """Credentials that run out, and that the operator does not renew."""

    what: Credential
    issued: datetime
    """When their life began."""
    expires: datetime


@dataclass(frozen=True, slots=True)
class ClusterSeen:
    """A remote cluster as last seen."""

    state: ClusterState
    message: str = ""
    """Why it is not ready, in one line without a secret; the same text for as long as the cause is the same."""
    seen_at: datetime | None = None
    """When it last gave a whole answer; None: never."""
    namespace: str = ""
    """Where the job's objects are in that cluster; empty: not known, because the kubeconfig is unusable."""
    place: str = ""
    """Server and namespace: two clusters with the same ones are the same place. Empty: as above."""
    expiring: Expiring | None = None
    """None: the credentials do not run out, or the operator renews them."""
    deleted: bool = False
    """The Secret with its kubeconfig is being deleted, and is used until it is gone."""
    settled: bool = True
    """False: the first requests are still under way, so that the state says nothing yet."""
    same_as: str = ""
    """The name of another cluster of the job whose kubeconfig leads to the same server and namespace; empty: none."""
    assigns_users: bool = False
    """Whether its platform chooses user and groups of pods."""
    held: bool = True
    """Whether home holds its Lease there."""
    unlisted: frozenset[str] = frozenset()
    """Kinds whose objects cannot be listed, for example because that is forbidden. What exists of them is not known, so
    nothing of these kinds is written."""

    @property
    def takes_writes(self) -> bool:
        """Whether writes are sent."""
        return self.held and self.state.takes_writes


CLUSTER_LABEL: Final = "diloco.dev/cluster"
"""The label of Secrets whose kubeconfig jobs of their namespace may use. Its value does not matter."""
IN_USE: Final = "diloco.dev/in-use"
"""Finalizer of a Secret that jobs name: until none does, what they have in its cluster can be deleted with it."""
DEFAULT_KEY: Final = "kubeconfig"
"""The key of a Secret that holds the kubeconfig, unless the manifest names another one."""


def cluster_name(secret: str, key: str = DEFAULT_KEY) -> str:
    """The name of the cluster whose kubeconfig is in this Secret; no two kubeconfigs of a namespace share one."""
    return secret if key == DEFAULT_KEY else f"{secret}/{key}"  # no Secret's name contains a slash
