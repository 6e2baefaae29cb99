"""The operator's settings, in one table: each is a flag and a variable, ``DILOCO_`` plus its name in capitals. Pure.

The flag takes precedence. The table is the dataclass; flags, variables and the help text are made from it.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, Final

PREFIX: Final = "DILOCO_"
DEFAULT_LEASE: Final = "diloco-operator"
JOBS_LEASE: Final = "diloco-jobs"
"""The Lease of a namespace with jobs, whose holder is the operator that acts there."""
_DESCRIPTION: Final = """\
Reconciles DiLoCoJobs: creates learners and syncer, repairs drift, reports status.

To install it in a cluster, use the chart charts/diloco-operator; it needs no flags. To run it from
a working copy against the cluster of your kubeconfig, first install the DiLoCoJob definition
(kubectl apply -f crds/dilocojobs.diloco.dev.yaml), then:

  diloco-operator --operator-namespace default --trainer-image IMAGE
"""
_EPILOG: Final = """\
Only the holder of the Lease works; a second process waits for the Lease. Of several operators that
watch a namespace, the holder of the Lease diloco-jobs there acts in it.
/readyz says what the operator does or waits for; /healthz and /metrics are at the same address.

exit codes: 0 stopped on request; 1 unexpected error; 2 a flag, a variable or the kubeconfig is
wrong; 5 the Lease was lost, so nothing more may be written.
"""


class BadArgumentError(Exception):
    """A flag or a variable is wrong. The text is for the user."""


def _setting(default: Any, text: str, metavar: str = "") -> Any:
    return field(default=default, metadata={"help": text, "metavar": metavar})


@dataclass(frozen=True, slots=True)
class OperatorOptions:
    """The operator's own settings; none of them belongs to a job."""

    operator_namespace: str = _setting("", "namespace of the operator's Lease; default: the pod's own", "NAME")
    trainer_image: str | None = _setting(
        None, "image for jobs that name none; without it such jobs do not start", "IMAGE"
    )
    trainer_pull_secrets: tuple[str, ...] = _setting(
        (), "Secrets for pulling images, in the namespaces of jobs that name none", "NAME,NAME"
    )
    namespaces: tuple[str, ...] = _setting((), "namespaces whose jobs are reconciled; default: all", "NAME,NAME")
    exclude_namespaces: tuple[str, ...] = _setting(
        (), "namespaces whose jobs are left to another operator", "NAME,NAME"
    )
    resync_seconds: float = _setting(60.0, "how often every job is reconciled even if nothing changed", "SECONDS")
    poll_seconds: float = _setting(5.0, "how often a running job's syncer is asked for its status", "SECONDS")
    remote_deletion_seconds: float = _setting(
        600.0,
        "how long a deleted, suspended or finished job waits for another cluster that does not answer",
        "SECONDS",
    )
    lease_name: str = _setting(DEFAULT_LEASE, "name of the Lease whose holder works", "NAME")
    binding: str = _setting(
        "",
        "binding of the operator's rights, in each of --namespaces or of the whole cluster: Leases of namespaces are "
        "deleted with it",
        "NAME",
    )
    kueue: bool = _setting(default=False, text="ask Kueue for the quota of jobs with spec.queue")
    health_address: str = _setting("[::]:8080", "where /healthz, /readyz and /metrics are served", "HOST:PORT")
    log_json: bool = _setting(default=False, text="log one JSON object per line")
    verbose: bool = _setting(default=False, text="also log what kopf and the API client do")
    home_id: str = ""
    """No setting: what tells this home from others in clusters that several homes use. Empty: nothing is created in
    other clusters."""
    assigns_users: bool = False
    """No setting: whether home's platform chooses user and groups of pods."""

    @property
    def name(self) -> str:
        """What tells this operator from others, for all of its processes."""
        return f"{self.operator_namespace}/{self.lease_name}"

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ValueError: a setting is invalid; the text names it.
        """
        if not self.operator_namespace:
            raise ValueError(f"--operator-namespace: is missing; outside a pod, give it or {PREFIX}OPERATOR_NAMESPACE")
        if self.lease_name == JOBS_LEASE:
            raise ValueError(f"lease_name: {JOBS_LEASE} is the Lease of a namespace with jobs; use another name")
        for name in ("resync_seconds", "poll_seconds", "remote_deletion_seconds"):
            value: float = getattr(self, name)
            if not value > 0:
                raise ValueError(f"{name}: {value} is not above 0; use a larger number of seconds")


@dataclass(frozen=True, slots=True)
class Arguments:
    """The operator's arguments."""

    options: OperatorOptions
    kubeconfig: str | None = None
    """None: the pod's ServiceAccount, or where kubectl looks."""
    context: str | None = None


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
    found: dict[str, Any] = {"operator_namespace": own_namespace or ""}
    for one in _SETTINGS:
        variable = f"{PREFIX}{one.name.upper()}"
        value = getattr(given, one.name)
        # Charts leave a variable out by making it empty.
        if value is None and environment.get(variable):
            try:
                value = _reader(one)(environment[variable])
            except argparse.ArgumentTypeError as error:
                raise BadArgumentError(f"{variable}: {error}") from error
        if value is not None:
            found[one.name] = value
    try:
        return Arguments(OperatorOptions(**found), given.kubeconfig, given.context)
    except ValueError as error:
        raise BadArgumentError(str(error)) from error


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = argparse.ArgumentParser(
        prog="diloco-operator",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for one in _SETTINGS:
        flag = f"--{one.name.replace('_', '-')}"
        shown = f"; default: {one.default:g}" if isinstance(one.default, float) else f"; default: {one.default}"
        text = f"{one.metadata['help']} [{PREFIX}{one.name.upper()}]{shown if one.default else ''}"
        if isinstance(one.default, bool):
            made.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=text)
        else:
            made.add_argument(flag, type=_reader(one), metavar=one.metadata["metavar"], default=None, help=text)
    group = made.add_argument_group("cluster")
    group.add_argument(
        "--kubeconfig",
        metavar="FILE",
        help="kubeconfig; default: the pod's ServiceAccount, else $KUBECONFIG or ~/.kube/config",
    )
    group.add_argument("--context", metavar="NAME", help="context of the kubeconfig; default: its current one")
    return made


def _reader(setting: Field[Any]) -> Any:
    """How a setting's text is read: as what its default is."""
    return {bool: _boolean, float: _seconds, tuple: _names}.get(type(setting.default), str)


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


_SETTINGS: Final = tuple(one for one in fields(OperatorOptions) if one.metadata)
