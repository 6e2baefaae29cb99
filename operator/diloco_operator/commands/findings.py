"""What ``diloco cluster check`` finds, from a remote API server's answers. Pure: answers and time are arguments."""

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from diloco.runtime.output import escaped
from diloco.spec.words import listed, shortlist
from diloco_operator.cluster_state import CLUSTER_LABEL
from diloco_operator.clusters.rules import Permission, RoleScope, Rule
from diloco_operator.commands.shared import NEW_SECRET
from diloco_operator.objects import labels_of, mapping, metadata_of

if TYPE_CHECKING:
    from diloco_operator.clusters.kubeconfig import Kubeconfig

_ENFORCE: Final = "pod-security.kubernetes.io/enforce"
_RESTRICTED: Final = "restricted"
_SOON: Final = timedelta(days=7)
_MOST_KEYS: Final = 5
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")  # a DNS subdomain (RFC 1123), about
_LONGEST_TOLD: Final = 500
"""Characters shown of what a server or a Secret says (ours)."""


class Verdict(StrEnum):
    """How a check ended."""

    GOOD = "ok"
    NOTE = "note"
    """Regions run there, with a restriction."""
    PROBLEM = "problem"


_STYLES: Final = {Verdict.GOOD: "green", Verdict.NOTE: "yellow", Verdict.PROBLEM: "bold red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    what: str
    verdict: Verdict
    told: str
    """What was found, without a secret."""
    do: str = ""
    """What to do about it."""

    @property
    def line(self) -> str:
        """As a line of its own."""
        return f"{self.what}: {self.shown}; {self.do}" if self.do else f"{self.what}: {self.shown}"

    @property
    def shown(self) -> str:
        """What was found, printable and not too long: parts of it are what others chose."""
        return escaped(self.told if len(self.told) <= _LONGEST_TOLD else f"{self.told[:_LONGEST_TOLD]}...")


class NoKubeconfigError(ValueError):
    """A Secret without a usable kubeconfig."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.line)
        self.finding = finding


def of_labels(secret: Mapping[str, Any]) -> Finding:
    """Whether the operator watches the Secret."""
    if CLUSTER_LABEL in labels_of(secret):
        return Finding("Secret", Verdict.GOOD, f"has the label {CLUSTER_LABEL}")
    name = safe_name(metadata_of(secret).get("name")) or "NAME"
    do = f"add it: kubectl label secret {name} {CLUSTER_LABEL}=true"
    return Finding("Secret", Verdict.PROBLEM, f"lacks the label {CLUSTER_LABEL}, so the operator does not see it", do)


def content(secret: Mapping[str, Any], key: str) -> bytes:
    """The value of a key of a Secret, from ``data`` or ``stringData``.

    Raises:
        NoKubeconfigError: there is no such key, or its value is not base64.
    """
    plain, encoded = mapping(secret.get("stringData")), mapping(secret.get("data"))
    if isinstance(text := plain.get(key), str):
        return text.encode()
    if key not in encoded:
        keys = sorted({*plain, *encoded})
        there = f"; there is {shortlist(keys, _MOST_KEYS)}" if keys else "; it is empty"
        do = "use --key, or " + NEW_SECRET if keys else NEW_SECRET
        raise NoKubeconfigError(Finding("Secret", Verdict.PROBLEM, f"has no key {key}{there}", do))
    try:
        return base64.b64decode(str(encoded[key]), validate=True)
    except (binascii.Error, ValueError):
        raise NoKubeconfigError(Finding("Secret", Verdict.PROBLEM, f"data.{key} is not base64", NEW_SECRET)) from None


def of_kubeconfig(way: "Kubeconfig") -> Finding:
    """What the kubeconfig leads to."""
    by = "a token" if way.token else "a client certificate"
    return Finding("kubeconfig", Verdict.GOOD, f"{way.server}, namespace {way.namespace}, {by}")


def of_expiry(what: str, expires: datetime | None, now: datetime, *, renewed: bool) -> Finding:
    """How long the credentials last; ``expires`` None: they do not say. ``renewed``: the operator replaces them."""
    if expires is None:
        return Finding(what, Verdict.NOTE, "does not say when it expires", "prefer a token that expires")
    left = expires - now
    if left <= timedelta():
        return Finding(what, Verdict.PROBLEM, f"expired at {_time(expires)}", NEW_SECRET)
    told = f"expires at {_time(expires)}, in {_span(left)}"
    if renewed:
        return Finding(what, Verdict.GOOD, f"{told}; the operator renews it")
    if left < _SOON:
        return Finding(what, Verdict.NOTE, f"{told}, and is not renewed", NEW_SECRET)
    return Finding(what, Verdict.GOOD, told)


def of_rule(rule: Rule, granted: Mapping[Permission, bool], scope: RoleScope) -> Finding:
    """What a scope is granted of one rule."""
    verbs = {one.verb: has for one, has in granted.items() if one.rule == rule}
    what = str(next(one for one in granted if one.rule == rule)).partition(" ")[2]
    if missing := [verb for verb, has in verbs.items() if not has]:
        told = f"{listed(missing, 'and')} {'is' if len(missing) == 1 else 'are'} missing"
        account = f" --service-account {scope.account}" if scope.account else ""
        fix = f"have 'diloco cluster prepare {scope.namespace}{account}' applied there"
        if rule.is_optional:
            return Finding(what, Verdict.NOTE, f"{told}: {rule.without}", fix)
        return Finding(what, Verdict.PROBLEM, told, fix)
    return Finding(what, Verdict.GOOD, listed(verbs, "and"))


def of_namespace(found: Mapping[str, Any] | None, name: str) -> Finding:
    """What Pod Security level a namespace enforces; None: the namespace does not exist."""
    what = "Pod Security"
    if found is None:
        do = f"have 'diloco cluster prepare {name}' applied there"
        return Finding("namespace", Verdict.PROBLEM, f"{name} does not exist", do)
    if mapping(found.get("status")).get("phase") == "Terminating":
        return Finding("namespace", Verdict.PROBLEM, f"{name} is being deleted", "wait, or use another namespace")
    level = labels_of(found).get(_ENFORCE)
    if level == _RESTRICTED:
        return Finding(what, Verdict.GOOD, f"namespace {name} enforces {_RESTRICTED}")
    told = f"namespace {name} does not enforce {_RESTRICTED}" + (f", but {level}" if level else "")
    return Finding(what, Verdict.NOTE, told, f"set its label {_ENFORCE}={_RESTRICTED}; learners comply with it")


def safe_name(value: object) -> str:
    """The name of an object, if it is one; otherwise nothing: it is shown in commands that people copy."""
    return value if isinstance(value, str) and len(value) <= 253 and _NAME.fullmatch(value) else ""


def findings_table(findings: Sequence[Finding]) -> RenderableType:
    """One row per check."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("check", no_wrap=True)
    table.add_column("result", no_wrap=True)
    table.add_column("found", overflow="fold")
    for one in findings:
        table.add_row(Text(one.what), Text(one.verdict, style=_STYLES[one.verdict]), Text(one.shown))
    return table


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"


def _span(time: timedelta) -> str:
    hours = time.total_seconds() / 3600
    return (
        f"{hours / 24:.0f} days" if hours >= 48 else f"{hours:.0f} hours" if hours >= 2 else f"{hours * 60:.0f} minutes"
    )
