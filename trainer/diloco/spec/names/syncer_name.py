"""The name of a job's syncer in its certificate: the same wherever the syncer is reached.

Learners send it in the TLS handshake (SNI) and check it, whatever address they connect to. So no address is in a
certificate, a proxy can tell jobs apart without ending TLS, and an address that leads to another job's syncer is
noticed by the name in that one's certificate. Nothing resolves the name: ``.internal`` is reserved for private use.
"""

from typing import Final, NamedTuple

_SUFFIX: Final = ".syncer.diloco.internal"


class JobName(NamedTuple):
    """A job within its cluster."""

    job: str
    namespace: str

    def __str__(self) -> str:
        return f"{self.job} in namespace {self.namespace}"


def syncer_name(job: str, namespace: str) -> str:
    """The name, ``JOB.NAMESPACE.syncer.diloco.internal``; both are DNS labels, so no two jobs of a cluster share it."""
    return f"{job}.{namespace}{_SUFFIX}"


def job_of_syncer(name: str) -> JobName | None:
    """The job whose syncer has this name; None if it is no syncer's name."""
    labels = name.removesuffix(_SUFFIX).split(".")
    if not name.endswith(_SUFFIX) or len(labels) != len(JobName._fields) or not all(labels):
        return None
    return JobName(*labels)
