"""Reads jobs from an API server, and through it the status of a job's syncer."""

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

from pydantic import ValidationError

from diloco.cli.live.cluster_access import Answer, ApiServer, AwayError, ClusterError, ForbiddenError
from diloco.spec.job import MANAGER
from diloco.spec.status.job import JobStatus
from diloco.spec.status.syncer import SyncerStatus
from diloco.spec.words import shortlist

INSTALL: Final = "helm install diloco-operator charts/diloco-operator --namespace diloco-system --create-namespace"
_API: Final = "/apis/diloco.dev/v1alpha1"
_SYNCER_SECONDS: Final = 2.0
"""Longest wait for a syncer's status; after that the live view goes on without it."""
_PAGE_SECONDS: Final = 10.0
_MOST_NAMES: Final = 8


class NoSuchJobError(ClusterError):
    """The job does not exist; the text names those that do."""


class SyncerUnseenError(ClusterError):
    """The syncer's own status cannot be read; the text says why."""

    def __init__(self, text: str, *, lasting: bool) -> None:
        super().__init__(text)
        self.lasting = lasting
        """Whether another attempt would not help."""


@dataclass(frozen=True, slots=True)
class SeenJob:
    """A job as the API server returns it."""

    namespace: str
    name: str
    status: JobStatus
    note: str = ""
    """A note on the status: there is none yet, or it is behind the spec."""

    @property
    def over(self) -> bool:
        """Whether nothing will change any more."""
        return self.status.phase in ("Complete", "Failed")


class Jobs:
    """The jobs of a cluster."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server

    def every(self, namespace: str | None) -> tuple[SeenJob, ...]:
        """The jobs of a namespace, or of all namespaces, ordered by namespace and name.

        Raises:
            ClusterError: they cannot be read, or the cluster has no such resource.
        """
        answer = self._server.get(f"{_API}{_in(namespace)}/dilocojobs")
        if answer.status != HTTPStatus.OK:
            raise self._unknown_kind()
        jobs = [seen_job(item) for item in answer.said.get("items") or ()]
        return tuple(sorted(jobs, key=lambda job: (job.namespace, job.name)))

    def one(self, namespace: str, name: str) -> SeenJob:
        """One job; for errors see ``item``."""
        return seen_job(self.item(namespace, name))

    def item(self, namespace: str, name: str) -> Mapping[str, Any]:
        """One job, as the API server returns it.

        Raises:
            NoSuchJobError: it does not exist.
            ClusterError: it cannot be read.
        """
        answer = self._server.get(f"{_API}{_in(namespace)}/dilocojobs/{name}")
        if answer.status == HTTPStatus.OK:
            return answer.said
        if answer.said.get("details", {}).get("name") != name:  # the resource is unknown, not the job
            raise self._unknown_kind()
        raise NoSuchJobError(f"no job {name} in namespace {namespace}; {self._others(namespace, name)}")

    def syncer(self, job: SeenJob) -> SyncerStatus:
        """The status of the job's syncer, through the API server: no port and no network policy need be open.

        Raises:
            SyncerUnseenError: it is not running, the user lacks the permission, or it cannot be reached.
        """
        pod, answer = self._ask_syncer(job, "/status", _SYNCER_SECONDS)
        try:
            return SyncerStatus.model_validate_json(answer.body)
        except ValidationError as error:
            raise _unlike_a_syncer(pod, answer) from error

    def page(self, job: SeenJob) -> bytes:
        """The report of a job that runs, as its syncer draws it; for errors see ``syncer``."""
        pod, answer = self._ask_syncer(job, "/page", _PAGE_SECONDS)
        if answer.status == HTTPStatus.SERVICE_UNAVAILABLE:
            raise SyncerUnseenError(_printable(answer.body[:300].decode(errors="replace")), lasting=False)
        if answer.status != HTTPStatus.OK:
            raise _unlike_a_syncer(pod, answer)
        return answer.body

    def _ask_syncer(self, job: SeenJob, page: str, timeout_seconds: float) -> tuple[str, Answer]:
        """Name of the pod, and its answer."""
        from diloco_operator.manifests.common import HTTP_PORT

        try:
            pod = self._syncers_pod(job)
            if not pod:
                raise SyncerUnseenError("its syncer is not running", lasting=False)
            path = f"/api/v1{_in(job.namespace)}/pods/{pod}"
            return pod, self._server.ask_pod(path, HTTP_PORT, page, timeout_seconds=timeout_seconds)
        except ForbiddenError as error:
            raise SyncerUnseenError(f"{error}", lasting=True) from error
        except AwayError as error:
            raise SyncerUnseenError(
                f"its syncer cannot be reached through the API server: {error}", lasting=False
            ) from error

    def _syncers_pod(self, job: SeenJob) -> str:
        """Name of the pod in which the job's syncer runs; empty: in none."""
        from diloco_operator import labels

        if job.status.phase not in ("Pending", "Training", "Suspending"):
            return ""
        selector = quote(labels.text(labels.syncer_selector(job.name)))
        found = self._server.get(f"/api/v1{_in(job.namespace)}/pods?labelSelector={selector}").said.get("items") or ()
        running = (
            one["metadata"]["name"]
            for one in found
            if one["status"].get("phase") == "Running" and "deletionTimestamp" not in one["metadata"]
        )
        return next(running, "")

    def _others(self, namespace: str, name: str) -> str:
        if here := [job.name for job in self.every(namespace)]:
            return f"there {'is' if len(here) == 1 else 'are'} {shortlist(here, _MOST_NAMES)}"
        try:
            elsewhere = [job.namespace for job in self.every(None) if job.name == name]
        except ClusterError:  # a user of one namespace may lack the permission for all of them
            elsewhere = []
        return f"there is one in namespace {elsewhere[0]}" if elsewhere else "there are no jobs there"

    def _unknown_kind(self) -> ClusterError:
        return ClusterError(f"{self._server.url} has no DiLoCoJobs; install the operator with {INSTALL}")


def _unlike_a_syncer(pod: str, answer: Answer) -> SyncerUnseenError:
    why = f"pod {pod} answered with HTTP {answer.status}, but not like a syncer of this version"
    text = f"its syncer cannot be reached through the API server: {answer.said.get('message', why)}"
    return SyncerUnseenError(text, lasting=False)


def seen_job(item: Mapping[str, Any]) -> SeenJob:
    """A ``DiLoCoJob`` object as an API server returns it; any field of it may be missing."""
    metadata = item.get("metadata") or {}
    told = _printable(item.get("status") or {})
    note = ""
    try:
        status = JobStatus.model_validate(told)
    except ValidationError:
        status, note = JobStatus(), "this version cannot read its status; use a diloco as new as the operator"
    if not told:
        # The operator writes a new job's status within a second.
        note = (
            "no status yet; check that the operator runs: kubectl get pods -A -l app.kubernetes.io/name=diloco-operator"
        )
    elif not note and status.observed_generation < metadata.get("generation", 0):
        note = "the operator has not processed the latest change of the manifest yet"
    manager = (item.get("spec") or {}).get("managedBy") or MANAGER
    if manager != MANAGER:
        note = f"spec.managedBy is {_printable(manager)}: the operator leaves this job alone"
    return SeenJob(str(metadata.get("namespace", "")), str(metadata.get("name", "")), status, note)


def _printable(value: Any) -> Any:
    """``value`` with every text in it as one printable line, as conditions may quote a container's last output."""
    if isinstance(value, str):
        return " ".join("".join(char if char.isprintable() or char.isspace() else "?" for char in value).split())
    if isinstance(value, dict):
        return {key: _printable(inner) for key, inner in value.items()}
    return [_printable(inner) for inner in value] if isinstance(value, list) else value


def _in(namespace: str | None) -> str:
    return f"/namespaces/{namespace}" if namespace is not None else ""
