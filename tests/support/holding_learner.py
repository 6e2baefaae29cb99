"""A scripted learner that comes back to a restarted syncer and says what it holds."""

import contextlib
import time
from collections.abc import Callable

import torch

from diloco.wire.errors import UnavailableError, WireError
from diloco.wire.messages import HeldWanted, PushHeader, PushReceipt, SyncerMessage, Welcome
from tests.support.scripted_learner import WAIT_SECONDS, EndedError, ScriptedLearner

Alter = Callable[[torch.Tensor], torch.Tensor]


def held_header(wanted: HeldWanted, learner: str, epoch: str, payload_bytes: int) -> PushHeader:
    """Of the push that answers ``wanted``."""
    return PushHeader(
        learner=learner,
        incarnation=0,
        fragment=wanted.fragment,
        version=wanted.version,
        attempt=wanted.attempt,
        base_version=wanted.version,
        steps=0,
        tokens=0,
        codec="None",
        payload_bytes=payload_bytes,
        epoch=epoch,
    )


class HoldingLearner(ScriptedLearner):
    """Hands over what a restarted syncer asks for, as it is or ``altered``."""

    altered: Alter | None = None
    receipts: list[tuple[HeldWanted, PushReceipt]]

    def come_back(self) -> Welcome:
        """Join, hand over what is asked for, and join again until the syncer admits it."""
        self.receipts = []
        held = tuple(1 + version if p in self.fragments else 0 for p, version in enumerate(self.versions))
        epoch = self.epoch
        until = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < until:
            with contextlib.suppress(UnavailableError, EndedError):
                answer = self.join(held_epoch=epoch, held=held)
                if isinstance(answer, Welcome):
                    return answer
                self._hand_over_all(answer, epoch)
            time.sleep(0.1)
        raise AssertionError("the syncer does not admit it")

    def _hand_over_all(self, answer: SyncerMessage, epoch: str) -> None:
        message: SyncerMessage | None = answer
        while message is not None:
            assert isinstance(message, HeldWanted), message
            with contextlib.suppress(WireError):
                self.receipts.append((message, self.hand_over(message, epoch)))
            message = self.next()

    def hand_over(self, wanted: HeldWanted, epoch: str) -> PushReceipt:
        """Push a fragment as it is held."""
        values = self.fragments[wanted.fragment]
        values = values if self.altered is None else self.altered(values)
        payload = memoryview(values.numpy().tobytes())
        header = held_header(wanted, self.learner, epoch, len(payload))
        return self.client.push(header, payload, deadline_seconds=WAIT_SECONDS)
