"""Names of learner processes: random, and in a cluster with the pod that the process runs in.

The name tells a process that reconnects from another one with its learner's id, and a container that was started again
in its pod from a new pod.
"""

_BETWEEN = "/"


def process_name(random: str, pod: str) -> str:
    """The name of a process; ``pod``: the uid of its pod, empty if it has none."""
    return f"{pod}{_BETWEEN}{random}" if pod else random


def in_another_pod(process: str, earlier: str) -> bool:
    """Whether two processes were in different pods, as far as their names tell."""
    pod, pod_before = (name.rpartition(_BETWEEN)[0] for name in (process, earlier))
    return bool(pod and pod_before) and pod != pod_before
