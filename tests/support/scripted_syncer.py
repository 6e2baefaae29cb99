"""A syncer that a test drives, behind a real server: on its own it only decides which learners it admits."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import torch

from diloco.core.merge.codecs import uplink_codec
from diloco.core.merge.downlink import Update, downlink_codec, encode_update
from diloco.model.build import build_model
from diloco.model.fragments import layout_of, read_fragment
from diloco.spec import DiLoCoJob
from diloco.wire.errors import RefusedError
from diloco.wire.messages import (
    Dealt,
    FragmentReady,
    FragmentWanted,
    Join,
    LearnerMessage,
    Progress,
    PullHeader,
    PullRequest,
    PushHeader,
    PushReceipt,
    Refused,
    SyncerMessage,
    Welcome,
)
from diloco.wire.part_messages import payload_digest
from diloco.wire.server.handler import Send
from diloco.wire.tls.tls import Peer

PATIENCE_SECONDS = 240.0

M = TypeVar("M")


class ScriptedSyncer:
    """A ``SyncHandler`` with a real model. Every message that it receives is kept in ``said``, in order."""

    def __init__(self, job: DiLoCoJob, *, epoch: str = "1") -> None:
        module = build_model(job.spec)
        self.layout = layout_of(module, job.spec.sync.fragments)
        self.fragments = [torch.empty(fragment.numel) for fragment in self.layout.fragments]
        for fragment, out in zip(self.layout.fragments, self.fragments, strict=True):
            read_fragment(module, fragment, out)
        self.versions = [0] * len(self.fragments)
        self.epoch = epoch
        self.training = ""
        """Id of the training; empty: it says none."""
        self.updates: dict[int, tuple[PullHeader, torch.Tensor]] = {}
        """By fragment, what makes its version of the one before, where the job encodes updates."""
        self.pulls: list[PullRequest] = []
        self._made = asyncio.Event()
        self._downlink = downlink_codec(job.spec.sync)
        self.refusal: Refused | None = None
        """Answers every Join while it is set."""
        self.said: list[LearnerMessage | PushHeader] = []
        self.payloads: dict[tuple[int, int, int], torch.Tensor] = {}
        """(fragment, version, attempt) -> decoded outer gradient."""
        self.progress = Progress(0, job.spec.training.tokens, 0)
        self._codec = uplink_codec(job.spec.sync)
        self._buffers: dict[tuple[int, int, int], bytearray] = {}
        self._sessions = 0
        self._send: Send | None = None
        self._ended = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._heard = threading.Condition()

    async def session(self, join: Join, peer: Peer, inbound: AsyncIterator[LearnerMessage], send: Send) -> None:
        del peer
        self._loop = asyncio.get_running_loop()
        if self.refusal is not None:
            self._hear(join)
            send(self.refusal)
            return
        self._sessions += 1
        holds = join.epoch == self.epoch and len(join.versions) == len(self.versions)
        load = () if holds else tuple(range(len(self.versions)))
        elsewhere = bool(join.training and self.training and join.training != self.training)
        welcome = Welcome(
            self._sessions,
            self.epoch,
            load,
            tuple(self.versions),
            0 if elsewhere else join.steps,
            0 if elsewhere else join.data_position,
            self.progress,
            training=self.training,
        )
        send(welcome)
        if not join.dealt:
            send(Dealt(welcome.data_position, welcome.data_position, 1 << 40))
        self._send = send
        self._ended = ended = asyncio.Event()
        self._hear(join)
        reader = asyncio.ensure_future(self._read(inbound))
        stopper = asyncio.ensure_future(ended.wait())
        await asyncio.wait((reader, stopper), return_when=asyncio.FIRST_COMPLETED)
        reader.cancel()
        stopper.cancel()

    async def _read(self, inbound: AsyncIterator[LearnerMessage]) -> None:
        async for message in inbound:
            self._hear(message)

    def accept_push(self, header: PushHeader, peer: Peer, abandon: Callable[[], None]) -> memoryview:
        del peer, abandon
        numel = self.layout.fragments[header.fragment].numel
        if (header.epoch, header.payload_bytes) != (self.epoch, self._codec.payload_bytes(numel)):
            raise RefusedError("not of this epoch, or not of the fragment's size")
        key = (header.fragment, header.version, header.attempt)
        self._buffers[key] = buffer = bytearray(header.payload_bytes)
        return memoryview(buffer)

    def push_unwanted(self, header: PushHeader) -> str | None:
        del header
        return None

    async def pushed(self, header: PushHeader) -> PushReceipt:
        key = (header.fragment, header.version, header.attempt)
        out = torch.empty(self.layout.fragments[header.fragment].numel)
        self._codec.decode_into(torch.frombuffer(self._buffers.pop(key), dtype=torch.uint8), 0, out)
        self.payloads[key] = out
        self._hear(header)
        return PushReceipt(accepted=True)

    def push_failed(self, header: PushHeader, reason: str) -> None:
        del reason
        self._buffers.pop((header.fragment, header.version, header.attempt), None)

    async def open_pull(self, request: PullRequest, peer: Peer) -> tuple[PullHeader, memoryview]:
        del peer
        if request.epoch != self.epoch:
            raise RefusedError("another epoch")
        with self._heard:
            self.pulls.append(request)
            self._heard.notify_all()
        while request.posted and request.minimum_version > self.versions[request.fragment]:
            self._made.clear()
            await self._made.wait()
        update = self.updates.get(request.fragment)
        if update is not None and update[0].base_version == request.held_version:
            return update[0], memoryview(update[1].numpy().data)
        values = self.fragments[request.fragment]
        header = PullHeader(request.fragment, self.versions[request.fragment], values.nbytes)
        return header, memoryview(values.numpy().data).cast("B")

    def _hear(self, message: LearnerMessage | PushHeader) -> None:
        with self._heard:
            self.said.append(message)
            self._heard.notify_all()

    # What a test does with it, from its own thread.

    def wait_for(self, kind: type[M], where: Callable[[M], bool] = lambda _: True, *, after: int = 0) -> M:
        """The first message of a kind (after the first ``after`` messages) for which ``where`` holds; waits for it."""
        until = time.monotonic() + PATIENCE_SECONDS
        with self._heard:
            while True:
                for message in self.said[after:]:
                    if isinstance(message, kind) and where(message):
                        return message
                if not self._heard.wait(until - time.monotonic()):
                    raise AssertionError(f"no such {kind.__name__} in {self.said[-5:]}")

    def wait_for_pull(self, where: Callable[[PullRequest], bool]) -> PullRequest:
        """The first pull for which ``where`` holds; waits for it."""
        with self._heard:
            assert self._heard.wait_for(lambda: any(where(pull) for pull in self.pulls), PATIENCE_SECONDS), self.pulls
            return next(pull for pull in self.pulls if where(pull))

    def mark(self) -> int:
        """A value for ``wait_for``'s ``after``: only messages from now on count."""
        return len(self.said)

    def send(self, message: SyncerMessage) -> None:
        """Send a message on the current session."""
        assert self._loop is not None
        assert self._send is not None
        self._loop.call_soon_threadsafe(self._send, message)

    def end_session(self, *last: SyncerMessage) -> None:
        """Send the last messages and hang up."""
        assert self._loop is not None
        for message in last:
            self.send(message)
        self._loop.call_soon_threadsafe(self._ended.set)

    def ask(self, fragment: int, version: int, attempt: int = 1) -> None:
        """Request an outer gradient."""
        self.send(FragmentWanted(fragment, version, attempt))

    def publish(
        self, fragment: int, values: torch.Tensor | None = None, *, merged: bool = True, lies: bool = False
    ) -> int:
        """Make a new version of a fragment and announce it; returns the version. ``lies``: its update is wrong."""
        before = self.fragments[fragment]
        made = before.clone() if values is None else values
        version = self.versions[fragment] + 1
        if self._downlink is not None:
            rest = torch.zeros_like(made)
            payload, problem = encode_update(self._downlink, Update(before, made, rest, rest))
            assert payload is not None, problem
            digest = payload_digest(made.numpy().data.cast("B")) if not lies else bytes(16)
            name = self._downlink.name
            header = PullHeader(fragment, version, payload.numel(), b"", name, version - 1, digest)
            self.updates[fragment] = (header, payload)
        self.fragments[fragment] = made
        self.versions[fragment] = version
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._made.set)
        self.send(FragmentReady(fragment, self.versions[fragment], merged, self.progress))
        return self.versions[fragment]
