"""Address and credentials of the API server, from the pod's ServiceAccount or a kubeconfig.

The operator's own requests and kopf's watch both use them.
"""

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import kopf
import yaml
from kubernetes.aio import client, config

from diloco_operator.api_server.transport import Server, Transport

_TOKEN_READ_AGAIN = timedelta(minutes=10)  # bound tokens live an hour and are renewed on disk well before that


_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class NoConnectionError(Exception):
    """There is no address of an API server, or it cannot be used. The text is for the user."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A way to the API server."""

    configuration: Any
    """The kubernetes.aio configuration: host, TLS files, tokens and how to renew them."""
    described: str
    namespace: str = "default"
    """The default namespace: the context's, or the pod's."""

    async def for_kopf(self) -> kopf.ConnectionInfo:
        """The same credentials for kopf, which asks for them again before they expire."""
        configuration = self.configuration
        scheme, _, token = (await self._authorization()).partition(" ")
        return kopf.ConnectionInfo(
            server=configuration.host,
            ca_path=configuration.ssl_ca_cert,
            insecure=not configuration.verify_ssl,
            scheme=scheme.capitalize() or None,
            token=token or None,
            certificate_path=configuration.cert_file,
            private_key_path=configuration.key_file,
            proxy_url=configuration.proxy,
            expiration=datetime.now(UTC) + _TOKEN_READ_AGAIN,
        )

    def open(self) -> Transport:
        """New connections, which the caller closes. Needs a running event loop."""
        of, tls = self.configuration, ssl.create_default_context(cafile=self.configuration.ssl_ca_cert)
        if of.cert_file:
            tls.load_cert_chain(of.cert_file, of.key_file)
        if not of.verify_ssl:
            tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        if of.disable_strict_ssl_verification:
            tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return Transport(Server(of.host, tls, self._authorization, of.tls_server_name, of.proxy))

    async def _authorization(self) -> str:
        # The configuration renews tokens that are in files or come from programs.
        return str(((await self.configuration.auth_settings()).get("BearerToken") or {}).get("value") or "")


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
            return Connection(configuration, "the pod's ServiceAccount", own_namespace() or "default")
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
        contexts, current = config.list_kube_config_contexts(None if kubeconfig is None else str(kubeconfig))  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError, yaml.YAMLError, TypeError, KeyError) as error:
        # For a file that is not a mapping the loader raises a TypeError.
        message = " ".join(str(error).split())
        raise NoConnectionError(
            f"neither a pod nor a usable kubeconfig ({where}): {message}; use --kubeconfig FILE"
        ) from error
    chosen = next((one for one in contexts if one["name"] == context), current)
    return Connection(configuration, where, chosen["context"].get("namespace") or "default")


def own_namespace() -> str | None:
    """The namespace of the pod that this runs in; None: not in a pod."""
    try:
        return _OWN_NAMESPACE.read_text(encoding="utf-8").strip() or None
    except OSError:
        return None
