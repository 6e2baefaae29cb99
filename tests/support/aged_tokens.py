"""Tokens of a ServiceAccount that were issued earlier and run out sooner than an API server issues any.

It issues none of less than ten minutes. These are signed with its own key, so that it takes them as its own.
"""

import base64
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import yaml
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from testbed.kind.commands import run
from testbed.kind.peers import diloco
from tests.support.across import Far
from tests.support.cluster_jobs import ClusterJob
from tests.support.kubeconfigs import changed, kubeconfig_in

SIGNING_KEY = "/etc/kubernetes/pki/sa.key"
"""On a control plane's node, as kubeadm puts it there."""


def aged(token: str, signing_key: str, age: timedelta, left: timedelta) -> str:
    """A token like this one that was issued ``age`` ago and runs out when ``left`` has passed. Pure but for now."""
    header, claims, _ = token.split(".")
    now = datetime.now(UTC)
    issued, expires = (int((now + by).timestamp()) for by in (-age, left))
    changed = {**_decoded(claims), "iat": issued, "nbf": issued, "exp": expires}
    signed = f"{header}.{_encoded(json.dumps(changed).encode())}"
    key = serialization.load_pem_private_key(signing_key.encode(), password=None)
    assert isinstance(key, rsa.RSAPrivateKey)
    return f"{signed}.{_encoded(key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


def signing_key(control_plane: str) -> str:
    """The key by which a cluster's API server signs and knows tokens, in PEM."""
    return run("docker", "exec", control_plane, "cat", SIGNING_KEY)


@dataclass(frozen=True)
class Ageing:
    """A job in another cluster, for which home's token runs out."""

    job: ClusterJob
    far: Far
    secret: str
    """The Secret with that token."""
    pods: dict[str, tuple[str, int]]
    """The job's pods there, as before."""


@dataclass(frozen=True)
class RunningOut:
    """Two tokens that run out."""

    renewed: Ageing
    """The Role lets home renew it, and a learner trains."""
    told: Ageing
    """The Role does not, and the job has no pods."""


AGE, LEFT = timedelta(seconds=100), timedelta(seconds=10)
"""Past half of its life, at which it is renewed, and within its last quarter, in which its end is told."""


def secret_running_out(far: Far) -> str:
    """A Secret with a token that runs out soon."""
    secret = far.secret()
    token = kubeconfig_in(secret)["users"][0]["user"]["token"]
    return changed(secret, token=aged(token, signing_key(*far.api_node), AGE, LEFT))


def take_renewal(far: Far) -> None:
    """The Role without the rule about tokens."""
    (role,) = (one for one in yaml.safe_load_all(diloco("cluster", "prepare", far.namespace)) if one["kind"] == "Role")
    rules = [rule for rule in role["rules"] if rule["resources"] != ["serviceaccounts/token"]]
    assert len(rules) == len(role["rules"]) - 1
    far.cluster.kubectl("apply", "--filename", "-", stdin=yaml.safe_dump({**role, "rules": rules}))


def _decoded(part: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return found


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
