"""Turns the flags and environment of `diloco-operator` into options. Pure: both are arguments.

Every option is a flag and a variable, ``DILOCO_`` plus its name in capitals; the flag takes precedence.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from diloco_operator.options import OperatorOptions

PREFIX: Final = "DILOCO_"
_DEFAULTS: Final = OperatorOptions(operator_namespace="-")
_UNTOLD: Final = (None, (), "-", False)
"""Defaults that the help text describes in words."""
_DESCRIPTION: Final = """\
Reconciles DiLoCoJobs: creates learners and syncer, repairs drift, reports status.

To install it in a cluster, use the chart charts/diloco-operator; it needs no flags. To run it from
a working copy against the cluster of your kubeconfig, first install the DiLoCoJob definition
(kubectl apply -f crds/dilocojobs.diloco.dev.yaml), then:

  diloco-operator --operator-namespace default --trainer-image IMAGE
"""
_EPILOG: Final = """\
Only the holder of the Lease works; a second operator waits for the Lease.
/readyz says what the operator does or waits for; /healthz and /metrics are at the same address.

exit codes: 0 stopped on request; 1 unexpected error; 2 a flag, a variable or the kubeconfig is
wrong; 5 the Lease was lost, so nothing more may be written.
"""


class BadArgumentError(Exception):
    """A flag or a variable is wrong. The text is for the user."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """The operator's arguments."""

    options: OperatorOptions
    kubeconfig: Path | None = None
    """None: the pod's ServiceAccount, or where kubectl looks."""
    context: str | None = None
    verbose: bool = False


def parse(argv: Sequence[str], environment: Mapping[str, str], own_namespace: str | None) -> Arguments:
    """Read flags and environment.

    Args:
        argv: without the program's name.
        environment: of the process.
        own_namespace: of the pod; None: not in one.

    Raises:
        BadArgumentError: a flag or a variable is wrong.
        SystemExit: by argparse: --help, or an unknown flag.
    """
    given = parser().parse_args(argv)
    fields: dict[str, Any] = {}
    for option in _OPTIONS:
        flag, variable = getattr(given, option.field), environment.get(PREFIX + option.field.upper())
        # Charts leave a variable out by making it empty.
        if flag is None and variable:
            flag = _read(option, variable)
        if flag is not None:
            fields[option.field] = flag
    fields.setdefault("operator_namespace", own_namespace or "")
    if not fields["operator_namespace"]:
        raise BadArgumentError(
            f"--operator-namespace: is missing; outside a pod, give it or {PREFIX}OPERATOR_NAMESPACE"
        )
    try:
        options = OperatorOptions(**fields)
    except ValueError as error:
        raise BadArgumentError(str(error)) from error
    return Arguments(options, given.kubeconfig, given.context, given.verbose)


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = argparse.ArgumentParser(
        prog="diloco-operator",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for option in _OPTIONS:
        option.add_to(made)
    group = made.add_argument_group("cluster")
    group.add_argument(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="kubeconfig; default: the pod's ServiceAccount, else $KUBECONFIG or ~/.kube/config",
    )
    group.add_argument("--context", metavar="NAME", help="context of the kubeconfig; default: its current one")
    made.add_argument("--verbose", action="store_true", help="also log what kopf and the API client do")
    return made


@dataclass(frozen=True, slots=True)
class _Option:
    field: str
    help: str
    read: Callable[[str], Any] = str
    metavar: str = ""

    def add_to(self, made: argparse.ArgumentParser) -> None:
        flag = "--" + self.field.replace("_", "-")
        default = getattr(_DEFAULTS, self.field)
        told = f"{default:g}" if isinstance(default, float) else default
        text = f"{self.help} [{PREFIX}{self.field.upper()}]{f'; default: {told}' if told not in _UNTOLD else ''}"
        if self.read is _boolean:
            made.add_argument(flag, dest=self.field, action=argparse.BooleanOptionalAction, default=None, help=text)
        else:
            made.add_argument(flag, dest=self.field, type=self.read, metavar=self.metavar, default=None, help=text)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _boolean(text: str) -> bool:
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    try:
        return words[text.lower()]
    except KeyError:
        raise argparse.ArgumentTypeError(f"{text} is not a boolean; use true or false") from None


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not a number; use seconds such as 30") from None


def _read(option: _Option, text: str) -> Any:
    try:
        return option.read(text)
    except argparse.ArgumentTypeError as error:
        raise BadArgumentError(f"{PREFIX}{option.field.upper()}: {error}") from error


_OPTIONS: Final = (
    _Option("trainer_image", "image for jobs that name none; without it such jobs do not start", metavar="IMAGE"),
    _Option("namespaces", "namespaces whose jobs are reconciled; default: all", _names, "NAME,NAME"),
    _Option("operator_namespace", "namespace of the operator's Lease; default: the pod's own", metavar="NAME"),
    _Option("resync_seconds", "how often every job is reconciled even if nothing changed", _seconds, "SECONDS"),
    _Option("poll_seconds", "how often a running job's syncer is asked for its status", _seconds, "SECONDS"),
    _Option(
        "remote_deletion_seconds",
        "how long a deleted, suspended or finished job waits for another cluster that does not answer",
        _seconds,
        "SECONDS",
    ),
    _Option("lease_name", "name of the Lease whose holder works", metavar="NAME"),
    _Option("health_address", "where /healthz, /readyz and /metrics are served", metavar="HOST:PORT"),
    _Option("log_json", "log one JSON object per line", _boolean),
)
