"""Kubeconfigs with everything inline, on their own and in the Secrets of other clusters, as text."""

import base64
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

TOKEN = "a-secret.token_of/mine"
NAMESPACE = "there"


def inline(path: Path) -> str:
    """A file's content, as a kubeconfig holds it."""
    return base64.b64encode(path.read_bytes()).decode()


def kubeconfig(
    authority: Path, server: str = "https://far.example:6443", namespace: str = NAMESPACE, **user: Any
) -> dict[str, Any]:
    """A cluster with this authority's certificate, and a user with a token, unless other credentials are given."""
    cluster = {"server": server, "certificate-authority-data": inline(authority)}
    context = {"cluster": "far", "user": "me", "namespace": namespace}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "this",
        "clusters": [{"name": "far", "cluster": cluster}],
        "users": [{"name": "me", "user": user or {"token": TOKEN}}],
        "contexts": [{"name": "this", "context": context}],
    }


def text(config: object) -> bytes:
    """As in a file."""
    return yaml.safe_dump(config).encode()


def account_token(issued: datetime, expires: datetime | None, subject: str = "system:serviceaccount:there:ops") -> str:
    """The token of a ServiceAccount, with a signature that is none."""
    claims: dict[str, Any] = {"sub": subject, "iat": int(issued.timestamp())}
    if expires is not None:
        claims["exp"] = int(expires.timestamp())
    parts = [{"alg": "none"}, claims]
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*encoded, "c2lnbmF0dXJl"])


def kubeconfig_in(secret: str) -> dict[str, Any]:
    """The kubeconfig that a Secret holds."""
    found: dict[str, Any] = yaml.safe_load(yaml.safe_load(secret)["stringData"]["kubeconfig"])
    return found


def changed(secret: str, **user: Any) -> str:
    """A Secret whose kubeconfig has another user."""
    held, config = yaml.safe_load(secret), kubeconfig_in(secret)
    config["users"][0]["user"] = user
    return yaml.safe_dump({**held, "stringData": {"kubeconfig": yaml.safe_dump(config)}})
