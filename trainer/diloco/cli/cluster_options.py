"""Flags and names that several commands of ``diloco cluster`` share, and how a bad one is reported."""

import re
from pathlib import Path
from typing import Annotated, Final

import typer

from diloco.spec.base import DNS_LABEL, PATTERNS_IN_WORDS

DEFAULT_ACCOUNT: Final = "diloco-home"
"""The ServiceAccount that ``prepare`` makes and ``kubeconfig`` uses, unless another is named."""
CLUSTER_LABEL: Final = "diloco.dev/cluster"
"""Label of a Secret that holds the kubeconfig of a remote cluster; the operator watches only Secrets that have it."""
KUBECONFIG_KEY: Final = "kubeconfig"
"""The key of that Secret, unless a region names another (``cluster.kubeconfigSecret.key``)."""

Context = Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig. Default: the current one.")]
Kubeconfig = Annotated[
    Path | None,
    typer.Option("--kubeconfig", metavar="FILE", help="Kubeconfig. Default: $KUBECONFIG, or ~/.kube/config."),
]
ServiceAccount = Annotated[
    str,
    typer.Option("--service-account", metavar="NAME", help="ServiceAccount that the operator uses in that namespace."),
]


class ClusterInputError(ValueError):
    """An argument, a file or a Secret is unusable; the text is one line."""


def checked_name(field: str, name: str, kind: str) -> str:
    """``name``, if it is a DNS label (RFC 1123); ``field``: the flag or argument in the error.

    Raises:
        ClusterInputError: it is not.
    """
    if len(name) > 63 or re.fullmatch(DNS_LABEL, name) is None:
        raise ClusterInputError(
            f"{field}: {name!r} is not the name of a {kind}; use {PATTERNS_IN_WORDS[DNS_LABEL]}, at most 63 characters"
        )
    return name


def needs_operator() -> None:
    """Check that the operator's package is installed, as it is not in the learners' image.

    Raises:
        ClusterInputError: it is not.
    """
    import importlib.util

    if importlib.util.find_spec("diloco_operator") is None:
        raise ClusterInputError("clusters need the operator's package: pip install 'decoupled-diloco[operator]'")
