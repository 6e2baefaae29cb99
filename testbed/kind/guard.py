"""Which clusters are the test bed's own. Tests delete namespaces, nodes and charts: never in somebody else's. Pure."""

from collections.abc import Mapping
from typing import Any

from testbed.kind.cache import Cache, ClusterRecord

PREFIX = "diloco-"
IDENTITY_LABEL = "test-bed.diloco.dev/identity"


class NotOursError(Exception):
    """A cluster that the test bed did not make; nothing was done to it."""


def check_name(name: str) -> None:
    """A name that the test bed may give.

    Raises:
        NotOursError: It may not.
    """
    rest = name.removeprefix(PREFIX)
    if rest == name or not rest.replace("-", "").isalnum() or rest != rest.lower() or rest[-1] == "-":
        raise NotOursError(
            f"cluster {name!r}: a test bed's cluster is called {PREFIX}NAME, of small letters, digits and dashes"
        )


def check_record(name: str, recorded: Mapping[str, ClusterRecord], there: bool) -> None:
    """Whether an existing cluster of this name may be used, or deleted.

    Raises:
        NotOursError: It was not made here.
    """
    if there and name not in recorded:
        raise NotOursError(
            f"cluster {name!r} exists and was not made by this test bed; delete it with"
            f" `kind delete cluster --name {name}`, or set DILOCO_KIND_CLUSTER to another name"
        )


def check_kubeconfig(config: Mapping[str, Any], name: str) -> None:
    """Whether a kubeconfig leads to the cluster ``name`` of a kind on this machine, and nowhere else.

    Raises:
        NotOursError: It leads elsewhere.
    """
    contexts = [context["name"] for context in config.get("contexts") or []]
    servers = [cluster["cluster"]["server"] for cluster in config.get("clusters") or []]
    if contexts != [f"kind-{name}"] or config.get("current-context") != f"kind-{name}":
        raise NotOursError(f"kubeconfig of {name!r}: its contexts are {contexts}, not kind-{name} alone")
    if not all(server.startswith(("https://127.0.0.1:", "https://[::1]:")) for server in servers):
        raise NotOursError(f"kubeconfig of {name!r}: {', '.join(servers)} is not on this machine")


def check_nodes(nodes: Mapping[str, Any], name: str, record: ClusterRecord) -> None:
    """Whether the nodes that an API server lists are those that were made here.

    Raises:
        NotOursError: One of them lacks the identity.
    """
    identities = {node["metadata"]["labels"].get(IDENTITY_LABEL) for node in nodes["items"]}
    if identities != {record.identity}:
        raise NotOursError(f"cluster {name!r}: its nodes are not those that this test bed made")


def check_ours(cache: Cache, name: str) -> ClusterRecord:
    """The record of a finished cluster.

    Raises:
        NotOursError: There is none.
    """
    check_name(name)
    record = cache.state.clusters.get(name)
    if record is None or not record.complete:
        raise NotOursError(f"cluster {name!r} was not brought up by this test bed; use `make kind-up`")
    return record
