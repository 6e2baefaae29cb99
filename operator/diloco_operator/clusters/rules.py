"""What the operator must be allowed to do in its namespace of a remote cluster, as a table.

``diloco cluster prepare`` prints a Role made from it, and ``diloco cluster check`` and the operator ask the remote API
server for it, one permission at a time. Pure.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final


class OnlyObject(StrEnum):
    """The one object that a rule is restricted to, by its name."""

    ACCOUNT = "account"
    """The ServiceAccount that the operator uses there."""
    NAMESPACE = "namespace"
    """The namespace itself."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Verbs on one resource of the namespace."""

    group: str
    """Empty: the core group."""
    resource: str
    """Plural, with the subresource: ``statefulsets``, ``serviceaccounts/token``."""
    verbs: tuple[str, ...]
    why: str
    """What they are used for, as one sentence for the owner of the cluster."""
    only: OnlyObject | None = None
    without: str = ""
    """What does not work without the rule; empty: no region can run there."""

    @property
    def is_optional(self) -> bool:
        """Whether regions run without it."""
        return bool(self.without)


# get: whether a name is taken by an object of somebody else. list, watch: what became of what was applied. create,
# patch: server-side apply needs patch always, and create if the object does not exist. delete: what a job no longer
# needs; owner references do not reach across clusters, so nothing else deletes it.
_ALL: Final = ("get", "list", "watch", "create", "patch", "delete")

RULES: Final = (
    Rule("apps", "statefulsets", _ALL, "Runs the learners: one StatefulSet for each pool."),
    Rule("", "secrets", _ALL, "Gives each pool its certificate. These are all Secrets of the namespace."),
    Rule("", "configmaps", _ALL, "Tells the learners what to train and where the syncer is."),
    Rule("", "services", _ALL, "Gives each learner a name in DNS."),
    Rule("networking.k8s.io", "networkpolicies", _ALL, "Restricts who may connect to the learners."),
    Rule(
        "coordination.k8s.io",
        "leases",
        ("get", "create", "update"),
        "Keeps a copy of the operator's own cluster, made from a backup, from changing or deleting what it runs here.",
    ),
    Rule("", "pods", ("list",), "Names the cause if learners do not run."),
    Rule("", "events", ("list",), "Names the cause if learners do not run."),
    Rule(
        "",
        "pods",
        ("delete",),
        "Deletes a learner's pod whose node no longer responds or whose template was changed, so that another one "
        "takes its place.",
        without="a learner's pod on a node that does not respond stays until somebody deletes it, and so does one that "
        "keeps crashing on a broken node, or whose `resources` were changed",
    ),
    Rule(
        "",
        "persistentvolumeclaims",
        ("list",),
        "Reads whether a claim that such a pod mounts can be used on another node at the same time.",
        without="a learner's pod that mounts a claim stays on a node that does not respond",
    ),
    Rule(
        "",
        "serviceaccounts/token",
        ("create",),
        "Renews the operator's own token before it expires.",
        OnlyObject.ACCOUNT,
        "the operator cannot renew its token: put a new one into the Secret before it expires",
    ),
    Rule(
        "",
        "namespaces",
        ("get",),
        "Lets `diloco cluster check` read which Pod Security level the namespace enforces.",
        OnlyObject.NAMESPACE,
        "`diloco cluster check` cannot tell which Pod Security level the namespace enforces",
    ),
)
"""Everything that the operator, or `diloco cluster check` with its credentials, asks of a remote API server."""


@dataclass(frozen=True, slots=True)
class RoleScope:
    """Where the rules hold, and for whom."""

    namespace: str
    account: str = ""
    """The ServiceAccount; empty: the credentials are of somebody else, and are not renewed."""

    def name_for(self, rule: Rule) -> str:
        """The name of the one object that a rule is restricted to; empty: it is not restricted."""
        return {None: "", OnlyObject.ACCOUNT: self.account, OnlyObject.NAMESPACE: self.namespace}[rule.only]


@dataclass(frozen=True, slots=True)
class Permission:
    """One verb on one resource, as an API server is asked about it."""

    rule: Rule
    verb: str
    scope: RoleScope

    def __str__(self) -> str:
        """In the words of the API server's refusals: ``create statefulsets.apps``."""
        resource, slash, subresource = self.rule.resource.partition("/")
        group = f".{self.rule.group}" if self.rule.group else ""
        return f"{self.verb} {resource}{group}{slash}{subresource}"

    @property
    def name(self) -> str:
        """The one object that it is restricted to; empty: it is not restricted."""
        return self.scope.name_for(self.rule)


def permissions(scope: RoleScope) -> tuple[Permission, ...]:
    """Every verb of every rule that applies in a scope, in the order of the table."""
    return tuple(
        Permission(rule, verb, scope)
        for rule in RULES
        if rule.only is None or scope.name_for(rule)
        for verb in rule.verbs
    )


def role_rules(scope: RoleScope) -> tuple[tuple[str, dict[str, Any]], ...]:
    """The rules of a Role (rbac.authorization.k8s.io/v1), each with the reason for it."""
    found = []
    for rule in RULES:
        name = scope.name_for(rule)
        if rule.only is not None and not name:
            continue
        body: dict[str, Any] = {"apiGroups": [rule.group], "resources": [rule.resource]}
        found.append((rule.why, {**body, **({"resourceNames": [name]} if name else {}), "verbs": list(rule.verbs)}))
    return tuple(found)
