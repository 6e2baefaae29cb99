"""The sysctls that a user may set for a job's pods: the sizes of TCP's buffers, which limit what a long link carries.

Kubernetes counts them as safe from 1.32 on: they hold for the pod's network alone. Kubelets of earlier versions reject
a pod that has them.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from diloco.spec.errors import Problem
from diloco.spec.words import listed
from diloco_operator.manifests.errors import shown
from diloco_operator.manifests.inputs import Manifest

ALLOWED: Final = ("net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem")
_SIZES: Final = re.compile(r"[1-9][0-9]{0,9}( [1-9][0-9]{0,9}){2}")
_LARGEST: Final = 2**31 - 1
_USE: Final = "use the smallest, the usual and the largest size in bytes, such as 4096 131072 67108864"


def problems(place: str, context: Manifest) -> Iterator[Problem]:
    """Problems of a pod's ``securityContext`` at ``place``, in which only ``sysctls`` may be set."""
    for field in context:
        if field != "sysctls":
            yield Problem(f"{place}.{field}", "cannot be set here; use sysctls")
    given = context.get("sysctls")
    if given is None:
        return
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        yield Problem(f"{place}.sysctls", "is not a list of objects")
        return
    names = [one.get("name") for one in given]
    for index, one in enumerate(given):
        yield from _problems(f"{place}.sysctls[{index}]", one)
        if one.get("name") in names[:index]:
            yield Problem(
                f"{place}.sysctls[{index}].name", f"{shown(one['name'])} is there already; use each name once"
            )


def _problems(place: str, one: Manifest) -> Iterator[Problem]:
    for field in one:
        if field not in ("name", "value"):
            yield Problem(f"{place}.{field}", "is not a field of a sysctl; use name and value")
    name, value = one.get("name"), one.get("value")
    if name not in ALLOWED:
        yield Problem(f"{place}.name", f"{shown(name)} cannot be set here; use {listed(ALLOWED)}")
    if not _is_sizes(value):
        yield Problem(f"{place}.value", f"{shown(value)} is not three sizes; {_USE}")


def _is_sizes(value: Any) -> bool:
    if not isinstance(value, str) or _SIZES.fullmatch(value) is None:
        return False
    sizes = [int(one) for one in value.split(" ")]
    return sizes == sorted(sizes) and sizes[-1] <= _LARGEST
