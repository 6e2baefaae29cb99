"""Which learners fail again and again before they can join. Pure.

The syncer counts the restarts of learners that join. A container that fails before that (an accelerator cannot be used,
memory does not suffice for the model) is known to kubelet only. So the operator tells the syncer, which then gives the
learner up as it does with others, and forgets nothing.
"""

from collections.abc import Collection, Iterable, Mapping

from diloco.spec.names.learner_orders import LearnerOrder, orders_text
from diloco.spec.status.engine import LearnerState
from diloco_operator.decide.causes.pods import never_ready
from diloco_operator.decide.learners.held_pods import SetUid, set_of
from diloco_operator.decide.objects.workloads import PoolWorkload, number_of
from diloco_operator.decide.observed import Object, SyncerStatusView
from diloco_operator.manifests.learners import CONTAINER


def failing(
    workloads: Iterable[PoolWorkload],
    pods: Mapping[SetUid, Mapping[int, Object]],
    view: SyncerStatusView,
    allowed: int,
    told: Collection[LearnerOrder],
) -> str:
    """The order to give up the learners whose pods were never ready, and whose containers were restarted too often.

    Restarts of a learner that has joined in its pod are the syncer's to count: it knows which of them are failures.

    Args:
        workloads: The job's pools.
        pods: The pods of each set, by index.
        view: What the syncer reports.
        allowed: ``failurePolicy.maxRestartsPerLearner``.
        told: What the syncer was told before (`readmission.orders_told`).
    """
    absent = {one.id: one.incarnation for one in view.learners if one.state == LearnerState.ABSENT}
    orders: dict[LearnerOrder, None] = {}
    for workload in workloads:
        for index, pod in pods.get(set_of(workload), {}).items():
            learner = workload.learner_of(index)
            if learner in absent and (container := _container(pod)) is not None:
                order = LearnerOrder(learner, view.epoch, absent[learner])
                # One that runs may be about to join. Once told, the order stays until it does: the syncer reads it
                # later, and kubelet starts the container again in the meantime.
                fails = order in told or "running" not in (container.get("state") or {})
                if fails and never_ready(pod) and number_of(container.get("restartCount")) > allowed:
                    orders[order] = None
    return orders_text(orders)


def _container(pod: Object) -> Object | None:
    """The state of the learner's container in a pod that is not being deleted."""
    if pod["metadata"].get("deletionTimestamp"):
        return None
    statuses = pod.get("status", {}).get("containerStatuses") or ()
    return next((one for one in statuses if one.get("name") == CONTAINER), None)
