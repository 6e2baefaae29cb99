"""Attacks by a peer without a certificate on a syncer that requires none. Each is made once and cleans up.

Used by ``tests/hostile`` one by one and by the soak in random order.
"""

import contextlib
import queue
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from diloco.core.account.time_spent import TimeSpent
from diloco.wire.convert import pack_learner
from diloco.wire.errors import WireError
from diloco.wire.messages import (
    Applied,
    Declined,
    EvaluationReport,
    FragmentWanted,
    Join,
    LearnerMessage,
    Ready,
    StepReport,
    Welcome,
)
from diloco.wire.v1 import sync_pb2
from tests.support.raw_wire import RawClient, ending
from tests.support.scripted_learner import ScriptedLearner
from tests.support.syncer_process import SmallJob


@dataclass(frozen=True, slots=True)
class Aim:
    """The target, and what every attacker can know about the job."""

    sync: str
    http: str
    manifest: SmallJob

    @property
    def job(self) -> str:
        return self.manifest.name

    @property
    def layout_digest(self) -> str:
        return self.manifest.layout.digest

    def join(self, learner: str, instance: str = "stranger", steps: int = 0) -> bytes:
        """A valid Join."""
        return pack_learner(Join(self.job, learner, instance, self.layout_digest, steps=steps))


@contextlib.contextmanager
def idle_connections(address: str, count: int) -> Iterator[list[socket.socket]]:
    """Open connections on which nothing is sent."""
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as stack:
        held = []
        for _ in range(count):
            with contextlib.suppress(OSError):
                held.append(stack.enter_context(socket.create_connection((host, int(port)), timeout=10)))
        yield held


@contextlib.contextmanager
def slow_readers(aim: Aim, count: int) -> Iterator[list[socket.socket]]:
    """HTTP clients that request a page and never read it."""
    with idle_connections(aim.http, count) as held:
        for connection in held:
            with contextlib.suppress(OSError):
                connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        yield held


def forged_ids(aim: Aim) -> None:
    """Names with line breaks and control characters, in a Join and in a Leave."""
    line = "here/cpu/0\n12:00:00.000 syncer critical: everything is lost \x1b[2J"
    bad = sync_pb2.Join(protocol=1, job=aim.job, learner=line, instance="i", layout_digest=aim.layout_digest)
    leaves = sync_pb2.LearnerMessage(leave=sync_pb2.Leave(reason=line)).SerializeToString()
    with RawClient(aim.sync) as client:
        ending(client.session([sync_pb2.LearnerMessage(join=bad).SerializeToString()]))
        ending(client.session([aim.join("here/cpu/0", "forger"), leaves]))


def broken_rules(aim: Aim) -> None:
    """Sessions that break a rule and hang up at once, and some that wait for the answer."""
    for message in (
        b"\xff\xff\xff",
        pack_learner(Applied(1, 99, 1)),
        pack_learner(StepReport(1, 1, 10**9, 0.1, 1.0, 1)),
        aim.join("here/cpu/0"),
    ):
        for waits in (True, False):
            with RawClient(aim.sync) as client:
                call = client.session([aim.join("here/cpu/0", f"rude {waits}"), message])
                if waits:
                    ending(call)
                else:
                    next(call, None)
                    call.cancel()


def many_ids(aim: Aim, count: int) -> int:
    """Join with unplanned indices; returns how many were admitted."""
    let_in = 0
    with RawClient(aim.sync) as client:
        for index in range(1000, 1000 + count):
            call = client.session([aim.join(f"here/cpu/{index}")])
            with contextlib.suppress(Exception):  # whatever refuses it
                let_in += sync_pb2.SyncerMessage.FromString(next(call)).HasField("welcome")
            call.cancel()
    return let_in


def flood(aim: Aim, messages: int) -> None:
    """Send far more messages than a learner would in one session, and hang up."""
    alive = sync_pb2.LearnerMessage(alive=sync_pb2.Alive(incarnation=1)).SerializeToString()
    with RawClient(aim.sync) as client:

        def said() -> Iterator[bytes]:
            yield aim.join("here/cpu/0", "chatterbox")
            yield from repeat(alive, messages)

        call = client.session(said())
        next(call, None)
        ending(call)


def false_joins(aim: Aim) -> None:
    """Joins to another job, with another model or pool, with an invalid id, and with an impossible history."""
    job, digest, versions = aim.job, aim.layout_digest, (10**6,) * len(aim.manifest.layout.fragments)
    joins = (
        Join("another", "here/cpu/0", "false", digest),
        Join(job, "here/cpu/0", "false", "0" * len(digest)),
        Join(job, "there/gpu/0", "false", digest),
        Join(job, "nobody", "false", digest),
        Join(job, "here/cpu/0", "false", digest, steps=10**15, data_position=10**15),
        Join(job, "here/cpu/0", "false", digest, epoch="of nobody", versions=versions),
        Join(job, "here/cpu/0", "false", digest, epoch="of nobody", versions=(1,)),
        Join(job, "here/cpu/0", "false", digest, protocol=2),
    )
    for join in joins:
        with RawClient(aim.sync) as client:
            ending(client.session([pack_learner(join)]))


def false_claims(aim: Aim) -> None:
    """A learner that is admitted, and then claims impossible work in reports, and pushes what was not requested."""
    claims: tuple[Callable[[int], LearnerMessage], ...] = (
        lambda its: StepReport(its, 10**6, 10**6, 0.01, 1.0, 10**6),
        lambda its: StepReport(its, 1, 10**12, 0.01, 1.0, 1),
        lambda its: StepReport(its, 1, 1, 0.0, 0.0, 1, spent=TimeSpent(training=1e12, paused=1e12)),
        lambda its: Applied(its, 0, 10**6),
        lambda its: Declined(its, 0, 10**6, 1),
        lambda its: EvaluationReport(its, 0, 1e-9, exact=True),
        lambda its: Ready(its + 1),
    )
    for claim in claims:
        with RawClient(aim.sync) as client:
            welcomed: queue.Queue[int] = queue.Queue()
            call = client.session(_join_and_claim(aim, claim, welcomed))
            with contextlib.suppress(Exception):  # whatever refuses it
                welcomed.put(sync_pb2.SyncerMessage.FromString(next(call)).welcome.incarnation)
            ending(call)
    pushes: tuple[dict[str, Any], ...] = (
        {"steps": 10**6},
        {"tokens": 10**12},
        {"base_version": 10**6},
        {"fragment": 99},
        {"version": 10**6},
        {"incarnation": 10**6},
    )
    for changes in pushes:  # each ends its session
        with ScriptedLearner(aim.sync, aim.manifest, "here/cpu/0", "pushes claims") as learner:
            for wanted in asks(learner):
                with contextlib.suppress(WireError):
                    learner.push(wanted, **changes)
                break


def _join_and_claim(
    aim: Aim, claim: Callable[[int], LearnerMessage], incarnation: "queue.Queue[int]"
) -> Iterator[bytes]:
    yield aim.join("here/cpu/0", "claims")
    with contextlib.suppress(queue.Empty):
        yield pack_learner(claim(incarnation.get(timeout=10)))


def asks(learner: ScriptedLearner, seconds: float = 5.0) -> Iterator[FragmentWanted]:
    """Join and make steps; yields the requests until the session is ended or the time is over."""
    until = time.monotonic() + seconds
    with contextlib.suppress(WireError):
        answer = learner.join()
        if not isinstance(answer, Welcome):
            return
        learner.load(answer)
        while time.monotonic() < until:
            learner.step_within_bound()
            try:
                message = learner.next(0.02)
            except queue.Empty:
                continue
            if message is None:
                return
            if isinstance(message, FragmentWanted):
                yield message
            else:
                learner.obey(message)


def half_open_pushes(aim: Aim, count: int) -> int:
    """A learner that begins each requested push and ends none; returns how many it began."""
    began = 0
    with ScriptedLearner(aim.sync, aim.manifest, "here/cpu/0", "half open") as learner, RawClient(aim.sync) as raw:
        for wanted in asks(learner):
            raw.half_open_push(learner.header(wanted, learner.codec.encode(learner.gradient(wanted.fragment))))
            began += 1
            if began == count:
                break
    return began


def nonsense(aim: Aim) -> None:
    """Send bytes that are neither HTTP/2 nor HTTP."""
    for address in (aim.sync, aim.http):
        for said in (b"\0" * 65536, b"GET / HTTP/9.9\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 4096):
            with idle_connections(address, 1) as held, contextlib.suppress(OSError):
                held[0].sendall(said)
                held[0].shutdown(socket.SHUT_WR)
                while held[0].recv(65536):
                    pass


def all_attacks() -> dict[str, Callable[[Aim], object]]:
    """All attacks, each of a size that takes seconds, for the soak."""

    def held(made: Callable[[Aim], contextlib.AbstractContextManager[object]]) -> Callable[[Aim], None]:
        def attack(aim: Aim) -> None:
            with made(aim):
                pass

        return attack

    return {
        "idle connections": held(lambda aim: idle_connections(aim.sync, 300)),
        "slow readers": held(lambda aim: slow_readers(aim, 200)),
        "forged ids": forged_ids,
        "broken rules": broken_rules,
        "many ids": lambda aim: many_ids(aim, 100),
        "flood": lambda aim: flood(aim, 5000),
        "nonsense": nonsense,
        "false joins": false_joins,
        "false claims": false_claims,
        "half-open pushes": lambda aim: half_open_pushes(aim, 2),
    }
