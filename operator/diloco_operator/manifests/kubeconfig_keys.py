"""Which keys of Secrets regions may name for kubeconfigs.

The operator keeps a renewed token in a Secret whose name is made from the Secret's name and the key
(`diloco_operator.clusters.home.token_secret`). So that name must be a valid one, and no two may be the same.
"""

import re
from collections.abc import Iterator
from typing import Final

from diloco.spec import JobSpec
from diloco.spec.errors import Problem
from diloco_operator.manifests.errors import shown

LONGEST_KEY: Final = 180
"""Characters of a key: 253 for the name, less 63 for the Secret's, two dots and ``token``, rounded down."""
_KEY: Final = re.compile(r"[A-Za-z0-9]([-_A-Za-z0-9]*[A-Za-z0-9])?(\.[A-Za-z0-9]([-_A-Za-z0-9]*[A-Za-z0-9])?)*")


def problems(spec: JobSpec) -> Iterator[Problem]:
    """What is wrong with ``cluster.kubeconfigSecret.key`` of each region."""
    known: dict[tuple[str, str], tuple[str, str]] = {}
    for index, region in enumerate(spec.regions):
        if region.cluster is None:
            continue
        secret = region.cluster.kubeconfig_secret
        place = f"spec.regions[{index}].cluster.kubeconfigSecret.key"
        if len(secret.key) > LONGEST_KEY:
            yield Problem(place, f"{shown(secret.key)} is longer than {LONGEST_KEY} characters; use a shorter key")
        elif _KEY.fullmatch(secret.key) is None:
            text = "use letters, digits and inner hyphens, underscores and dots"
            yield Problem(place, f"{shown(secret.key)} is not a key that the operator can use; {text}")
        alike = (secret.name, secret.key.lower().replace("_", "-"))
        key, where = known.setdefault(alike, (secret.key, place))
        if key != secret.key:
            text = f"differs from {shown(key)} of {where.removesuffix('.key')} only in case, hyphens or underscores"
            yield Problem(place, f"{shown(secret.key)} {text}; use another key or another Secret")
