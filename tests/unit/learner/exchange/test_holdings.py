"""Which versions are held, and of which admission: those of an earlier one do not count."""

import weakref

import pytest
import torch

from diloco.learner.exchange.holdings import Holdings, MergedFragment
from diloco.learner.exchange.orders import Membership, Wakeup

FIRST = Membership("1", 1)
SECOND = Membership("1", 2)
RESTARTED = Membership("2", 1)


def merged(epoch: str, fragment: int, version: int) -> MergedFragment:
    return MergedFragment(epoch, fragment, version, torch.zeros(1))


def admitted(fragments: int, *load: int) -> Holdings:
    """As of the first admission, with these fragments to load."""
    holdings = Holdings(Wakeup(), fragments)
    holdings.admitted(FIRST, load)
    return holdings


def test_the_last_fragment_awaited_completes_the_admission() -> None:
    holdings = admitted(2, 0, 1)
    assert holdings.received(merged("1", 0, 4)) is None
    assert (holdings.complete, holdings.to_join_with()) == (False, ("", ()))
    assert holdings.received(merged("1", 1, 7)) == FIRST
    assert holdings.complete
    assert holdings.to_join_with() == ("1", (4, 7))


def test_an_admission_without_load_keeps_what_is_held() -> None:
    holdings = admitted(1, 0)
    holdings.received(merged("1", 0, 4))
    assert holdings.admitted(SECOND, [])
    assert holdings.lacks("1", 0, 5)
    assert not holdings.lacks("1", 0, 4)


def test_another_epoch_holds_nothing_though_versions_are_lower() -> None:
    holdings = admitted(1, 0)
    holdings.received(merged("1", 0, 9))
    holdings.admitted(RESTARTED, [0])
    assert holdings.lacks("2", 0, 3)
    assert holdings.received(merged("1", 0, 10)) is None
    assert holdings.received(merged("2", 0, 3)) == RESTARTED


def test_completion_goes_to_the_admission_that_waits_now() -> None:
    holdings = admitted(1, 0)
    holdings.admitted(SECOND, [0])
    assert holdings.received(merged("1", 0, 1)) == SECOND


def test_it_is_complete_when_nothing_is_awaited_and_nothing_is_missing() -> None:
    holdings = admitted(2)
    seen = [holdings.complete]
    holdings.received(merged("1", 0, 1))
    seen.append(holdings.complete)
    holdings.received(merged("1", 1, 1))
    seen.append(holdings.complete)
    assert seen == [False, False, True]


@pytest.mark.parametrize(("epoch", "fragment", "version"), [("1", 0, 4), ("1", 1, None), ("2", 0, None)])
def test_held_to_the_bit_is_what_was_received_with_its_values(epoch: str, fragment: int, version: int | None) -> None:
    holdings = admitted(3, 0, 1, 2)
    holdings.received(merged("1", 0, 4))
    held = holdings.held(epoch, fragment)
    assert (None if held is None else held.version) == version


def test_of_an_epoch_before_nothing_is_held_though_nothing_is_to_be_loaded() -> None:
    holdings = admitted(1)
    tensors = [torch.zeros(1)]
    there = weakref.ref(tensors[0])
    holdings.received(MergedFragment("1", 0, 4, tensors.pop()))
    holdings.admitted(RESTARTED, [])
    assert (holdings.versions(), holdings.held("2", 0)) == ((None,), None)
    assert there() is None  # nor is its memory


def test_only_the_newest_waits_and_only_what_replaces_another_wakes() -> None:
    wakeup = Wakeup()
    holdings = Holdings(wakeup, 1)
    holdings.admitted(FIRST, [0])
    first, newer = merged("1", 0, 5), merged("1", 0, 6)
    woken = []
    for arrival in (first, newer, merged("1", 0, 6), first):
        holdings.arrived(arrival)
        woken.append(wakeup.notices)
    assert woken == [1, 2, 2, 2]
    assert [holdings.lacks("1", 0, version) for version in (6, 7)] == [False, True]
    assert holdings.take() == [newer]
    assert holdings.take() == []


def test_what_is_being_swapped_in_is_not_lacked_until_an_admission_says_so() -> None:
    holdings = admitted(1, 0)
    holdings.arrived(merged("1", 0, 5))
    (taken,) = holdings.take()
    assert not holdings.lacks("1", 0, 5)
    holdings.arrived(taken)
    assert holdings.take() == []
    holdings.admitted(SECOND, [0])
    assert holdings.lacks("1", 0, 5)


def test_what_arrives_of_an_epoch_before_is_dropped() -> None:
    holdings = admitted(2, 0, 1)
    holdings.arrived(merged("1", 0, 9))
    holdings.admitted(RESTARTED, [0, 1])
    holdings.arrived(merged("1", 1, 9))
    assert holdings.take() == []
    present = merged("2", 0, 2)
    holdings.arrived(present)
    holdings.arrived(merged("1", 0, 9))
    assert holdings.take() == [present]
