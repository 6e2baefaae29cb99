"""What a failed test of a cluster reports: objects, events and logs, as an engineer on call would look at them."""

from collections.abc import Iterable

from testbed.kind.clusters import Cluster
from testbed.kind.commands import CommandFailedError

_KINDS = "dilocojobs,statefulsets,deployments,pods,services,persistentvolumeclaims,poddisruptionbudgets"
_LOG_LINES = 60
_SECTION_CHARACTERS = 12_000


def sections(cluster: Cluster, namespaces: Iterable[str]) -> list[tuple[str, str]]:
    """(title, text) for a test's report: the nodes, then each namespace."""
    asked: list[tuple[str, ...]] = [("get", "nodes", "--output", "wide")]
    for namespace in namespaces:
        inside = ("--namespace", namespace)
        asked += [
            ("get", _KINDS, *inside, "--output", "wide"),
            ("get", "dilocojobs", *inside, "--output", "yaml"),
            ("describe", "pods", *inside),
            ("get", "events", *inside, "--sort-by=.lastTimestamp"),
        ]
        asked += [
            ("logs", name, *inside, "--all-containers", "--prefix", f"--tail={_LOG_LINES}", *previous)
            for name in _ask(cluster, ("get", "pods", *inside, "--output", "name")).split()
            for previous in ((), ("--previous",))
        ]
    found = ((f"kubectl {' '.join(question)}", _ask(cluster, question)) for question in asked)
    # The end tells more: the newest events, the last lines of a log.
    return [(title, text[-_SECTION_CHARACTERS:]) for title, text in found if text.strip()]


def _ask(cluster: Cluster, question: tuple[str, ...]) -> str:
    try:
        return cluster.kubectl(*question, timeout_seconds=20)
    except CommandFailedError as error:
        # No earlier container, or no such kind yet: not worth a section.
        expected = ("previous terminated container", "doesn't have a resource type", "the server could not find")
        return "" if any(words in error.output for words in expected) else str(error)
