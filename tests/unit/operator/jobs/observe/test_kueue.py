"""What is read of Kueue, when it can be read and when it cannot."""

import asyncio
from typing import Any

import pytest

from diloco_operator.api_server.errors import Call, of_status
from diloco_operator.api_server.kinds import Kind, Object
from diloco_operator.decide.observed import KueueSeen
from diloco_operator.jobs.observe.kueue import READ_SECONDS, Kueue

JOB: Object = {"spec": {"queue": {"name": "team", "priorityClass": "high"}}}


class Server:
    """Answers with a priority, or with an error."""

    code, now, asked = 200, 100.0, 0

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Object:
        self.asked += 1
        if self.code != 200:
            raise of_status(Call("get", kind.resource, namespace, name), self.code, {"message": "no"})
        return {"value": 10}


def looked(kueue: Any) -> KueueSeen:
    found = asyncio.run(kueue.look(JOB, {}))
    assert isinstance(found, KueueSeen)
    return found


@pytest.mark.parametrize("code", [500, 503, 429, 401])
def test_what_cannot_be_read_for_a_moment_is_told_and_asked_for_again_soon(code: int) -> None:
    server = Server()
    kueue = Kueue(server, lambda: server.now, lambda: "")  # type: ignore[arg-type]
    server.code = code
    found = looked(kueue)
    assert (found.priority, found.problem) == (
        None,
        "spec.queue.priorityClass: WorkloadPriorityClass high cannot be read: no",
    )
    looked(kueue)
    assert server.asked == 1
    server.code, server.now = 200, server.now + 5
    assert looked(kueue) == KueueSeen(priority=10)
    server.code, server.now = code, server.now + READ_SECONDS
    assert looked(kueue) == KueueSeen(priority=10), "what was read before is used"
    assert server.asked == 3
    server.code, server.now = 404, server.now + 5
    assert looked(kueue).priority is None, "it was deleted"


def test_without_kueue_the_job_is_told_why_and_nothing_is_asked() -> None:
    server = Server()
    kueue = Kueue(server, lambda: server.now, lambda: "install Kueue")  # type: ignore[arg-type]
    assert looked(kueue) == KueueSeen(missing="install Kueue")
    assert asyncio.run(kueue.look({"spec": {}}, {})) is None
    assert server.asked == 0
