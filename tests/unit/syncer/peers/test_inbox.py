from collections.abc import Callable
from typing import Any

import pytest

from diloco.core.merge.codecs import codec_named
from diloco.syncer.peers.inbox import Inbox, PushRefusedError
from diloco.wire.messages import PushHeader, PushKey
from tests.support.syncer_peers import LAYOUT

KEY = PushKey("r/p/0", 1, 0, 5, 1)


def push(key: PushKey = KEY, **changes: Any) -> PushHeader:
    claims: dict[str, Any] = {
        "base_version": 4,
        "steps": 1,
        "tokens": 1,
        "codec": "BF16",
        "payload_bytes": 20,
        "epoch": "1",
    }
    return PushHeader(*key, **(claims | changes))


@pytest.fixture
def inbox() -> Inbox:
    inbox = Inbox(LAYOUT, codec_named("BF16"))
    inbox.ask(KEY)
    return inbox


def nobody() -> None:
    """A callback for a push that is abandoned: it does nothing."""


def arrive(inbox: Inbox, key: PushKey = KEY) -> None:
    inbox.open(push(key), nobody)
    assert inbox.accept(key)


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (push(KEY._replace(attempt=2)), "was not requested, or no longer is"),
        (push(codec="None"), "sync.compression of this job is BF16"),
        (push(payload_bytes=1 << 50), "is 20 bytes in codec BF16, not"),
        (push(base_version=5), "cannot be measured from version 5"),
    ],
)
def test_a_push_that_is_not_what_was_asked_takes_no_memory(inbox: Inbox, header: PushHeader, text: str) -> None:
    with pytest.raises(PushRefusedError, match=text):
        inbox.open(header, nobody)
    assert inbox.held_bytes == 0


def test_one_ask_has_one_buffer(inbox: Inbox) -> None:
    inbox.open(push(), nobody)
    with pytest.raises(PushRefusedError, match=r"another push .* is under way"):
        inbox.open(push(), nobody)
    inbox.abandon(KEY)
    assert inbox.held_bytes == 0
    arrive(inbox)
    with pytest.raises(PushRefusedError, match="was received before"):
        inbox.open(push(), nobody)


def test_the_same_ask_again_does_not_disturb_what_is_being_received(inbox: Inbox) -> None:
    buffer = inbox.open(push(), nobody)
    inbox.ask(KEY)
    assert inbox.received(KEY) is buffer


def test_what_later_merges_and_other_fragments_need_outlasts_a_merge(inbox: Inbox) -> None:
    later = [KEY._replace(learner="r/p/1", version=6), KEY._replace(learner="r/p/2", fragment=1, version=4)]
    sizes = {0: 20, 1: 12}
    for key in later:
        inbox.ask(key)
        inbox.open(push(key, base_version=3, payload_bytes=sizes[key.fragment]), nobody)
    inbox.void_version(0, 5)
    assert all(inbox.accept(key) for key in later)
    inbox.void_version(0, 5)
    assert inbox.held_bytes == sum(inbox.payload(key).nbytes for key in later) == 32


def test_a_session_that_ends_takes_its_asks_with_it_but_not_what_is_here(inbox: Inbox) -> None:
    other = KEY._replace(fragment=1)
    inbox.ask(other)
    arrive(inbox)
    inbox.void_session("r/p/0", 1)
    assert inbox.payload(KEY) is not None
    with pytest.raises(PushRefusedError):
        inbox.open(push(other), nobody)


def test_what_is_dropped_is_gone_and_dropping_twice_is_no_error(inbox: Inbox) -> None:
    arrive(inbox)
    inbox.drop(KEY)
    inbox.drop(KEY)
    assert inbox.held_bytes == 0
    with pytest.raises(KeyError):
        inbox.payload(KEY)


def test_a_push_that_comes_after_its_round_is_told_once(inbox: Inbox) -> None:
    inbox.ask(KEY)
    assert not inbox.lapsed(KEY)
    inbox.void_version(KEY.fragment, KEY.version)
    assert not inbox.lapsed(KEY._replace(attempt=KEY.attempt + 1))
    assert inbox.lapsed(KEY)
    assert not inbox.lapsed(KEY)


def test_what_a_session_left_unanswered_is_forgotten_with_it(inbox: Inbox) -> None:
    inbox.ask(KEY)
    inbox.void_version(KEY.fragment, KEY.version)
    inbox.void_session(KEY.learner, KEY.incarnation)
    assert not inbox.lapsed(KEY)


VOIDING: dict[str, Callable[[Inbox], None]] = {
    "asked anew": lambda inbox: inbox.ask(KEY._replace(attempt=2)),
    "the session is over": lambda inbox: inbox.void_session(KEY.learner, KEY.incarnation),
    "the version is made": lambda inbox: inbox.void_version(KEY.fragment, KEY.version),
}


@pytest.mark.parametrize("why", VOIDING)
def test_an_unwanted_push_is_told_at_once_and_counts_until_it_is_abandoned(inbox: Inbox, why: str) -> None:
    told: list[str] = []
    inbox.open(push(), lambda: told.append("abandoned"))
    VOIDING[why](inbox)
    assert told == ["abandoned"]
    assert inbox.received(KEY) is None
    assert inbox.held_bytes == 20
    inbox.abandon(KEY)
    assert inbox.held_bytes == 0
