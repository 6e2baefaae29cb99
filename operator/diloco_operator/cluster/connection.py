"""Address and credentials of the API server, from the pod's ServiceAccount or a kubeconfig.

The operator's own requests and kopf's watch both use them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import kopf
import yaml
from kubernetes.aio import client, config

_TOKEN_READ_AGAIN = timedelta(minutes=10)  # bound tokens live an hour and are renewed on disk well before that


class NoConnectionError(Exception):
    """There is no address of an API server, or it cannot be used. The text is for the user."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A way to the API server."""

    configuration: Any
    """The kubernetes.aio configuration: host, TLS files, tokens and how to renew them."""
    described: str

    def open(self) -> Any:
        """A new kubernetes.aio ApiClient, which the caller closes. Needs a running event loop."""
        return client.ApiClient(self.configuration)


async def connect(kubeconfig: Path | None, context: str | None) -> Connection:
    """Connect with the pod's own ServiceAccount if there is one and no kubeconfig is named, else with a kubeconfig.

    Raises:
        NoConnectionError: there is neither, or it is unusable.
    """
    configuration = client.Configuration()
    if kubeconfig is None and context is None:
        try:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        except config.ConfigException:
            pass  # not in a pod
        else:
            return Connection(configuration, "the pod's ServiceAccount")
    if kubeconfig is not None and not kubeconfig.is_file():  # noqa: ASYNC240 # nothing else runs yet
        raise NoConnectionError(f"--kubeconfig: {kubeconfig} is not a file; use the path of a kubeconfig")
    where = str(kubeconfig) if kubeconfig is not None else "$KUBECONFIG or ~/.kube/config"
    try:
        await config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=None if kubeconfig is None else str(kubeconfig),
            context=context,
            client_configuration=configuration,
            persist_config=False,
        )
    except (config.ConfigException, OSError, yaml.YAMLError, TypeError) as error:
        # For a file that is not a mapping the loader raises a TypeError.
        message = " ".join(str(error).split())
        raise NoConnectionError(
            f"neither a pod nor a usable kubeconfig ({where}): {message}; use --kubeconfig FILE"
        ) from error
    return Connection(configuration, where)


def login(connection: Connection, now: Callable[[], datetime]) -> kopf.OperatorRegistry:
    """A kopf registry that logs in with the same credentials, and reads tokens again before they expire."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry, id="connection")
    async def log_in(**_kwargs: Any) -> kopf.ConnectionInfo:
        configuration: Any = connection.configuration
        bearer = (await configuration.auth_settings()).get("BearerToken") or {}
        scheme, _, token = str(bearer.get("value") or "").partition(" ")
        return kopf.ConnectionInfo(
            server=configuration.host,
            ca_path=configuration.ssl_ca_cert,
            insecure=not configuration.verify_ssl,
            scheme=scheme.capitalize() or None,
            token=token or None,
            certificate_path=configuration.cert_file,
            private_key_path=configuration.key_file,
            proxy_url=configuration.proxy,
            expiration=now().astimezone(UTC) + _TOKEN_READ_AGAIN,
        )

    return registry
