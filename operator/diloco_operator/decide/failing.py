"""Which learners fail again and again before they can join. Pure.

The syncer counts the restarts of learners that join. A container that fails before that (an accelerator that cannot be
used, memory that does not suffice for the model, an image that is gone after the first start) is known to kubelet only.
So the operator tells the syncer, which then gives the learner up as it does with others, and forgets nothing.
"""

from collections.abc import Iterable, Mapping

from diloco.spec.learner_orders import LearnerOrder, orders_text
from diloco.spec.syncer_status import LearnerState
from diloco_operator.decide.held_pods import SetUid, set_of
from diloco_operator.decide.observed import Object, SyncerStatusView
from diloco_operator.decide.workloads import PoolWorkload, number_of
from diloco_operator.manifests.learners import CONTAINER


def failing(
    workloads: Iterable[PoolWorkload],
    pods: Mapping[SetUid, Mapping[int, Object]],
    view: SyncerStatusView,
    allowed: int,
) -> str:
    """The order to give up the learners that have no session and whose containers were restarted too often.

    Args:
        workloads: The job's pools.
        pods: The pods of each set, by index.
        view: What the syncer reports.
        allowed: ``failurePolicy.maxRestartsPerLearner``.
    """
    absent = {one.id: one.incarnation for one in view.learners if one.state == LearnerState.ABSENT}
    found = (
        f"{workload.pool}/{index}"
        for workload in workloads
        for index, pod in pods.get(set_of(workload), {}).items()
        if _restarts(pod) > allowed
    )
    return orders_text(LearnerOrder(one, view.epoch, absent[one]) for one in found if one in absent)


def _restarts(pod: Object) -> int:
    """How often kubelet has started the learner's container again in this pod, which is not being deleted."""
    if pod["metadata"].get("deletionTimestamp"):
        return 0
    statuses = pod.get("status", {}).get("containerStatuses") or ()
    return sum(number_of(one.get("restartCount")) for one in statuses if one.get("name") == CONTAINER)
