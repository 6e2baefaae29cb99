"""``diloco cluster revoke`` takes the server's time, and gives way to whoever changes the job meanwhile."""

import asyncio
import copy
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import pytest

from diloco_operator.api_server.errors import Call, ConflictError
from diloco_operator.api_server.kinds import Kind, Object
from diloco_operator.commands.revoke import revoke_in
from diloco_operator.commands.shared import CommandError

if TYPE_CHECKING:
    from diloco_operator.api_server.api import Api

POOLS = [{"name": "old"}, {"name": "new"}]
JOB: dict[str, Any] = {"metadata": {"name": "job"}, "spec": {"regions": [{"name": "west", "pools": POOLS}]}}


class Server:
    """Has one job, which others change so many times."""

    def __init__(self, changes: int = 0) -> None:
        self._changes = changes
        self.written: list[Object] = []

    async def get(self, _kind: Kind, _namespace: str, _name: str) -> Object:
        return copy.deepcopy(JOB)

    async def time(self) -> datetime:
        return datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)

    async def replace(self, _kind: Kind, body: Object) -> None:
        if self._changes:
            self._changes -= 1
            raise ConflictError(Call("update", "dilocojobs"), "changed", code=409)
        self.written.append(body)


def revoked(server: Server, what: str) -> list[str | None]:
    asyncio.run(revoke_in(cast("Api", server), "ml", "job", what))
    (job,) = server.written
    return [pool.get("certificatesNotBefore") for pool in job["spec"]["regions"][0]["pools"]]


def test_the_time_is_the_servers_and_the_begun_second_is_revoked_too() -> None:
    assert revoked(Server(), "west") == ["2001-02-03T04:05:07Z"] * 2
    assert revoked(Server(), "west/new") == [None, "2001-02-03T04:05:07Z"]


def test_a_job_that_has_just_changed_is_read_again() -> None:
    assert revoked(Server(changes=2), "west/old") == ["2001-02-03T04:05:07Z", None]
    with pytest.raises(CommandError, match="changes all the time"):
        revoked(Server(changes=5), "west")
