"""``diloco cluster revoke`` takes the server's time, and gives way to whoever changes the job meanwhile."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from diloco.cli.cluster_access import Answer, ApiServer, ClusterError
from diloco.cli.cluster_revoke import annotate
from diloco_operator.decide.revocation import REVOKED

LONG_AGO = datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)
JOB: dict[str, Any] = {"metadata": {"name": "job"}, "spec": {"regions": [{"name": "west", "pools": [{"name": "old"}]}]}}


class ScriptedServer(ApiServer):
    """Has one job, and answers each write with the next of these statuses."""

    def __init__(self, date: datetime | None, *writes: int) -> None:
        self.url = "https://home"
        self._date = date
        self._writes = list(writes)
        self.written: list[str] = []

    def get(self, path: str, *, timeout_seconds: float = 15.0, accept: str = "") -> Answer:  # noqa: ARG002  # as the base class
        return Answer(200, json.dumps(JOB).encode(), self._date)

    def put(self, path: str, body: Mapping[str, Any], *, timeout_seconds: float = 15.0) -> Answer:  # noqa: ARG002  # as the base class
        self.written.append(body["metadata"]["annotations"][REVOKED])
        return Answer(self._writes.pop(0), json.dumps({"message": "no such luck"}).encode())


def test_the_time_is_the_servers_whatever_the_clock_here_says() -> None:
    server = ScriptedServer(LONG_AGO, 200)
    annotate(server, "/job", "west")
    assert server.written == ["west=2001-02-03T04:05:07Z"]


def test_a_server_that_does_not_say_its_time_gets_no_annotation() -> None:
    server = ScriptedServer(None)
    with pytest.raises(ClusterError, match="https://home does not say its time"):
        annotate(server, "/job", "west")
    assert server.written == []


def test_a_job_that_has_just_changed_is_read_again() -> None:
    server = ScriptedServer(LONG_AGO, 409, 409, 200)
    annotate(server, "/job", "west/old")
    assert len(server.written) == 3


@pytest.mark.parametrize(
    ("writes", "told"), [((422,), "refuses the annotation: no such luck"), ((409,) * 5, "changes all the time")]
)
def test_a_write_that_fails_is_one_line(writes: tuple[int, ...], told: str) -> None:
    with pytest.raises(ClusterError, match=told):
        annotate(ScriptedServer(LONG_AGO, *writes), "/job", "west")
