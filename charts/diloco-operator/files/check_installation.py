"""What ``helm test`` runs, in the operator's image: the operator is at work, and the API server serves its kind.

Needs nothing but Python, so that a broken installation is told from a broken package. Reads DILOCO_READY_URL; the rest
is what every pod is given.
"""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

GROUP_VERSION = "diloco.dev/v1alpha1"
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PATIENCE_SECONDS = 60.0
REQUEST_SECONDS = 10.0


def read(url: str, *, token: str = "", trusted: ssl.SSLContext | None = None) -> bytes:
    """The body of ``url``; an OSError where it does not answer with success."""
    request = urllib.request.Request(url)  # noqa: S310  # the addresses are the chart's and the cluster's
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=REQUEST_SECONDS, context=trusted) as answer:  # noqa: S310  # as above
        return bytes(answer.read())


def operator_trouble() -> str:
    """Why the operator is not ready; empty where it is."""
    url = os.environ["DILOCO_READY_URL"]
    try:
        read(url)
    except OSError as error:
        # An HTTP error carries the operator's own words.
        words = error.read().decode(errors="replace") if isinstance(error, urllib.error.HTTPError) else ""
        return f"{url}: {error} {words}".strip()
    return ""


def kind_trouble() -> str:
    """Why jobs cannot be asked for; empty where they can."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    url = f"https://{f'[{host}]' if ':' in host else host}:{port}/apis/{GROUP_VERSION}"
    try:
        trusted = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
        token = (ACCOUNT / "token").read_text(encoding="utf-8")
        resources = json.loads(read(url, token=token, trusted=trusted))["resources"]
    except OSError as error:
        return f"{url}: {error}"
    missing = {"dilocojobs", "dilocojobs/status"} - {resource["name"] for resource in resources}
    return f"{url} does not name {', '.join(sorted(missing))}" if missing else ""


def main() -> int:
    """Try until both are well or patience ends; the exit code."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        troubles = [trouble for trouble in (operator_trouble(), kind_trouble()) if trouble]
        if not troubles:
            print(f"The operator is ready, and {GROUP_VERSION} DiLoCoJobs are served.")
            return 0
        if time.monotonic() > deadline:
            print("\n".join(troubles), file=sys.stderr)
            return 1
        time.sleep(2)


if __name__ == "__main__":
    sys.exit(main())
