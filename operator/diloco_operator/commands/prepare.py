"""``diloco cluster prepare``: what the owner of a remote cluster applies, so that jobs can have regions there."""

import json
import textwrap
from typing import Annotated, Any, Final

import typer

from diloco.runtime.yaml_text import yaml_documents
from diloco.spec.names.object_names import checked_name
from diloco_operator.clusters.rules import RoleScope, role_rules
from diloco_operator.commands.shared import DEFAULT_ACCOUNT, ServiceAccount

_HEADER: Final = """\
# Lets the diloco operator of another cluster run learners in namespace {namespace}, and nothing outside it.
# Use a namespace that holds nothing else: the operator can read all its Secrets and run pods in it.
# Apply this with rights to create namespaces and roles. To take the rights away, delete the RoleBinding.
"""
_LABELS: Final = {"app.kubernetes.io/name": "diloco", "app.kubernetes.io/component": "home"}
_MODES: Final = ("enforce", "warn", "audit")
_COLUMNS: Final = 100


def prepare(
    namespace: Annotated[str, typer.Argument(metavar="NAMESPACE", help="Namespace for the learners.")],
    service_account: ServiceAccount = DEFAULT_ACCOUNT,
) -> None:
    """Print what a remote cluster needs before regions can run there. Nothing is sent anywhere.

    The output is a Namespace whose Pod Security level is restricted, a
    ServiceAccount, a Role and a RoleBinding. The owner of the remote cluster
    applies it there; the Role says why each right is needed. The next step is
    'diloco cluster kubeconfig'.

    \b
    Examples:
      diloco cluster prepare learners > prepare.yaml
      diloco cluster prepare learners | kubectl apply --context west -f -
      diloco cluster prepare learners --service-account team-a | kubectl diff -f -
    """
    checked_name("NAMESPACE", namespace, "namespace")
    checked_name("--service-account", service_account, "ServiceAccount")
    typer.echo(prepared(RoleScope(namespace, service_account)), nl=False)


def prepared(scope: RoleScope) -> str:
    """The YAML documents for a place: the same text for the same scope."""
    namespace, account = scope.namespace, scope.account
    security = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in _MODES}
    before = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": {**_LABELS, **security}}},
        # The operator's pods are elsewhere: no pod of this cluster needs the account's token.
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": _metadata(scope),
            "automountServiceAccountToken": False,
        },
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": _metadata(scope)},
    ]
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": _metadata(scope),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": account},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }
    return _HEADER.format(namespace=namespace) + yaml_documents(before) + _rules(scope) + yaml_documents([binding])


def _metadata(scope: RoleScope) -> dict[str, Any]:
    return {"name": scope.account, "namespace": scope.namespace, "labels": _LABELS}


def _rules(scope: RoleScope) -> str:
    """The Role's rules, each below the reason for it as a comment."""
    lines = ["rules:"]
    for why, rule in role_rules(scope):
        lines += textwrap.wrap(why, _COLUMNS, initial_indent="# ", subsequent_indent="# ")
        # JSON is YAML: each list stays on its line, and the core group is "".
        fields = [f"{key}: {json.dumps(value)}" for key, value in rule.items()]
        lines += [f"- {fields[0]}", *(f"  {field}" for field in fields[1:])]
    return "\n".join(lines) + "\n"
