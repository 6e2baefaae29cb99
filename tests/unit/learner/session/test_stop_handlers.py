"""A loop's framework may handle signals during a step, and not between two."""

import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from diloco.learner.session.following import Following
from diloco.learner.session.leading import Leading
from diloco.learner.session.stop_handlers import StopHandlers
from diloco.learner.unit.orders import Op, Order


def own(_: int, __: object) -> None:
    """A framework's."""


def first() -> Leading:
    return Leading(MagicMock(), MagicMock(), MagicMock(), StopHandlers())


def another() -> Following:
    together = SimpleNamespace(world=SimpleNamespace(hear=lambda: Order(Op.END)), meet=lambda _: None)
    return Following(MagicMock(), cast("Any", together), MagicMock(), StopHandlers())


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("process", [first, another])
def test_between_two_steps_signals_are_handled_as_before_the_loop(process: Any) -> None:
    before = signal.getsignal(signal.SIGTERM)
    begun = process()
    signal.signal(signal.SIGTERM, own)
    begun.after_step(SimpleNamespace(steps=1))
    assert signal.getsignal(signal.SIGTERM) is before
