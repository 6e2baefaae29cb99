"""Decides whether a command means a run on this machine or jobs in a cluster: one rule for all commands.

A cluster is meant if the program is called as ``kubectl diloco``, if one of kubectl's flags is given (``--namespace``,
``--all-namespaces``, ``--context``, ``--kubeconfig``), or if the argument is ``job/NAME``; otherwise this machine
(``./job/NAME`` for a folder of that name). Pure: no files, no network.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from diloco.spec.base import DNS_LABEL, PATTERNS_IN_WORDS

KUBECTL_PROGRAM: Final = "kubectl diloco"
"""The program's name when kubectl starts it (as ``kubectl-diloco``)."""
_KINDS: Final = ("job", "dlj", "dilocojob", "dilocojobs", "dilocojob.diloco.dev", "dilocojobs.diloco.dev")

_PANEL: Final = "Jobs in a cluster"
Namespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", help="Namespace. Default: the context's.", rich_help_panel=_PANEL),
]
AllNamespaces = Annotated[
    bool, typer.Option("--all-namespaces", "-A", help="Jobs in all namespaces.", rich_help_panel=_PANEL)
]
Context = Annotated[
    str | None,
    typer.Option("--context", help="Context of the kubeconfig. Default: the current one.", rich_help_panel=_PANEL),
]
Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig",
        metavar="FILE",
        help="Kubeconfig. Default: $KUBECONFIG, or ~/.kube/config.",
        rich_help_panel=_PANEL,
    ),
]


class TargetError(ValueError):
    """The argument names neither a run nor a job; the text says what would."""


@dataclass(frozen=True, slots=True)
class ClusterFlags:
    """The flags that kubectl has too."""

    namespace: str | None = None
    all_namespaces: bool = False
    context: str | None = None
    kubeconfig: Path | None = None


@dataclass(frozen=True, slots=True)
class LocalRun:
    """A run on this machine, or any syncer's HTTP address."""

    where: str


@dataclass(frozen=True, slots=True)
class ClusterJobs:
    """One job in a cluster, or several."""

    flags: ClusterFlags
    job: str | None
    """None: all of them."""


def target(what: str | None, flags: ClusterFlags, *, program: str) -> LocalRun | ClusterJobs:
    """The target of a command; ``what`` is its argument, if one was given.

    Raises:
        TargetError: it cannot be a job's name, or cannot be combined with the flags.
    """
    kind, slash, name = (what or "").partition("/")
    named = bool(slash) and kind.lower() in _KINDS
    if not named and flags == ClusterFlags() and program != KUBECTL_PROGRAM:
        return LocalRun(what or ".")
    job = name if named else what
    if flags.namespace is not None and not _is_label(flags.namespace):
        raise TargetError(f"--namespace: {flags.namespace} is not a namespace; use {PATTERNS_IN_WORDS[DNS_LABEL]}")
    if job is None:
        return ClusterJobs(flags, None)
    if not _is_label(job):
        raise TargetError(
            f"{what!r} is not a valid job name; use NAME or job/NAME; for a run on this machine use 'diloco' "
            "instead of 'kubectl diloco', and no cluster flags"
        )
    if flags.all_namespaces:
        raise TargetError(f"--all-namespaces: {what} is one job; leave it out, or use --namespace")
    return ClusterJobs(flags, job)


def _is_label(name: str) -> bool:
    return len(name) <= 63 and re.fullmatch(DNS_LABEL, name) is not None
