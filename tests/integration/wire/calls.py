"""The calls of a learner in these tests: a session, a push and a pull, whole and in pieces."""

import contextlib
import dataclasses
import os
from collections.abc import Callable
from typing import Any

from diloco.wire.convert import pack
from diloco.wire.errors import UnavailableError
from diloco.wire.messages import Join, PullHeader, PullRequest
from diloco.wire.part_messages import Holds, pack_holds
from diloco.wire.parts import BLOCK_BYTES
from testbed.blocking_client import BlockingClient
from tests.support.raw_wire import part_at, push_header

STALL_SECONDS = 2.0
"""After which the server of these tests gives up a call that does not move."""
CONNECTIONS = 8
"""Of transfers by way of the relay."""
PAYLOAD = os.urandom(8 << 20)
"""Of fragment 7, which `REQUEST` asks for."""
PAYLOAD_PART = 128 << 10
"""The bytes of each of its parts over so many connections, and 16 of its header."""
PAYLOAD_IN_PARTS = len(PAYLOAD) + 16 * (len(PAYLOAD) // PAYLOAD_PART)
JOIN = Join("job", "a/b/0", "instance", "layout")
REQUEST = PullRequest("a/b/0", 1, 7, 3, "epoch")
NAMED = dataclasses.replace(REQUEST, transfer="mine", connections=1)
PULL = [pack(NAMED), pack_holds(Holds([]))]
"""What a learner says that asks for all of it."""

PART = BLOCK_BYTES
DATA = os.urandom(4 * PART)
HEADER = push_header(len(DATA), part_bytes=PART)


def part(number: int, data: bytes = DATA) -> bytes:
    return part_at(number * PART, data[number * PART : (number + 1) * PART])


PARTS = [part(number) for number in range(4)]


def push(client: BlockingClient, payload: bytes = PAYLOAD, **header: Any) -> None:
    """Push it with these changes to the header; it is accepted."""
    changed = dataclasses.replace(push_header(len(payload)), **header)
    assert client.push(changed, memoryview(payload), deadline_seconds=30).accepted


def pull(client: BlockingClient, **request: Any) -> bytes:
    """Pull what `REQUEST` with these changes asks for."""
    buffer = bytearray()

    def allocate(header: PullHeader) -> memoryview:
        buffer.extend(bytes(header.payload_bytes))
        return memoryview(buffer)

    client.pull(dataclasses.replace(REQUEST, **request), allocate, deadline_seconds=30)
    return bytes(buffer)


def gets_through(call: Callable[[], object]) -> None:
    """Check that it succeeds again on its own; the first attempts may meet the connection that is being closed."""
    for _ in range(9):
        with contextlib.suppress(UnavailableError):
            call()
            return
    call()
