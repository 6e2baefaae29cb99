"""Which pods of a set have its template. Pure.

While pods avoid nodes, the template of their set differs from what it would be without, the base, in where pods should
be, and in nothing else. A pod that was made from either is up to date. So the template with the avoidance, and each pod
made from it, has a label with the base's revision (`manifests/avoidance.py`). A StatefulSet's controller gives equal
templates equal names, so the base has that name again later.
"""

import re
from typing import Final

from diloco_operator.decide.drift import template_differs
from diloco_operator.decide.observed import Object
from diloco_operator.decide.templates import TEMPLATE
from diloco_operator.decide.workloads import seen_by_controller, status_of
from diloco_operator.manifests.avoidance import base_revision
from diloco_operator.manifests.holds import creates_gated

_HASH: Final = "controller-revision-hash"
"""Label of a set's pods: the revision that they were made from."""
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9._]{0,61}[A-Za-z0-9])?")


def is_outdated(pod: Object, live: Object) -> bool:
    """Whether a pod has another base than its set, by what the controller has seen. False: it is not known either."""
    own = base_revision(pod) or str((pod["metadata"].get("labels") or {}).get(_HASH, ""))
    wanted = base_revision(live["spec"]["template"]) or status_of(live).get("updateRevision")
    return bool(own and wanted) and own != wanted


def revision_of_base(desired: Object, live: Object | None) -> str:
    """The name of the revision that is the template of ``desired``, which avoids no nodes; empty: not known yet.

    Of a template that the controller has not seen alone, it is not known.
    """
    if live is None or _digest(desired) != _digest(live):
        return ""
    known = base_revision(live["spec"]["template"])
    if known:
        return known
    if creates_gated(live) or not seen_by_controller(live) or template_differs(desired, live):
        return ""
    name = status_of(live).get("updateRevision")
    return name if isinstance(name, str) and _LABEL_VALUE.fullmatch(name) else ""


def _digest(one: Object) -> object:
    """Of its template without what is added for a while; None: it is of an earlier version, and has none."""
    return (one["metadata"].get("annotations") or {}).get(TEMPLATE)
