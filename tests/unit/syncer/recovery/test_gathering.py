"""Who is asked for what a restarted syncer lacks."""

from diloco.syncer.recovery.gathering import MOST_HOLDERS, MOST_OF_ONE, MOST_RETURNS, MOST_UNDER_WAY, Gathering, Order


def only(gathering: Gathering) -> Order:
    (order,) = gathering.next_orders()
    return order


def test_the_newest_version_is_asked_of_one_that_holds_it() -> None:
    gathering = Gathering({3: (5, 6)}, ["a", "b"])
    assert gathering.joined("a", {3: 6, 0: 9})
    order = only(gathering)
    assert (order.learner, order.fragment, order.version) == ("a", 3, 6)
    assert gathering.next_orders() == []
    gathering.received(order)
    assert gathering.complete
    assert gathering.has(3)


def test_an_older_version_waits_until_nobody_else_is_awaited() -> None:
    gathering = Gathering({0: (5, 6)}, ["a", "b"])
    assert gathering.joined("a", {0: 5})
    assert gathering.next_orders() == []
    assert gathering.waiting
    gathering.wait_no_more()
    assert only(gathering).version == 5


def test_versions_without_proof_and_unknown_fragments_are_nothing() -> None:
    gathering = Gathering({0: (5,), 1: ()}, ["a"])
    assert not gathering.joined("a", {0: 4, 1: 3, 9: 5})
    assert gathering.over
    assert not gathering.complete


def test_who_sends_something_else_is_asked_for_nothing_more() -> None:
    gathering = Gathering({0: (1,), 1: (1,)}, ["a", "b"])
    gathering.joined("a", {0: 1, 1: 1})
    first, second = gathering.next_orders()
    gathering.failed(first)
    assert gathering.under_way == ()
    assert not gathering.joined("a", {0: 1, 1: 1})
    gathering.joined("b", {0: 1, 1: 1})
    assert {order.learner for order in gathering.next_orders()} == {"b"}
    gathering.declined(second)  # what it says of an order that is void changes nothing
    assert len(gathering.under_way) == 2


def test_what_a_learner_no_longer_holds_is_asked_of_another() -> None:
    gathering = Gathering({0: (1,)}, ["a"])
    gathering.joined("a", {0: 1})
    gathering.joined("b", {0: 1})
    order = only(gathering)
    gathering.declined(order)
    other = only(gathering)
    assert other.learner != order.learner
    assert other.attempt != order.attempt
    gathering.declined(other)
    assert gathering.over


def test_what_was_asked_of_a_learner_that_leaves_is_asked_again() -> None:
    gathering = Gathering({0: (1,)}, ["a"])
    gathering.joined("a", {0: 1})
    order = only(gathering)
    gathering.left("a")
    assert gathering.over
    assert gathering.joined("a", {0: 1})
    assert only(gathering).attempt != order.attempt


def test_what_has_come_counts_although_its_learner_is_gone() -> None:
    gathering = Gathering({0: (1,)}, ["a", "b"])
    gathering.joined("a", {0: 1})
    gathering.joined("b", {0: 1})
    order = only(gathering)
    gathering.left("a")
    again = only(gathering)
    gathering.received(order)
    assert gathering.complete
    gathering.declined(again)
    assert gathering.under_way == ()


def test_a_learner_that_comes_again_and_again_is_not_listened_to() -> None:
    gathering = Gathering({0: (1,)}, [])
    assert [gathering.joined("a", {0: 1}) for _ in range(MOST_RETURNS + 1)] == [True] * MOST_RETURNS + [False]


def test_few_fragments_are_under_way_at_once_and_shared_by_learners() -> None:
    versions = dict.fromkeys(range(100), 1)
    gathering = Gathering(dict.fromkeys(versions, (1,)), [])
    gathering.joined("a", versions)
    assert len(gathering.next_orders()) == MOST_OF_ONE
    for name in "bcd":
        gathering.joined(name, versions)
    gathering.next_orders()
    orders = gathering.under_way
    assert len(orders) == MOST_UNDER_WAY
    assert all(sum(order.learner == name for order in orders) == MOST_OF_ONE for name in "abcd")


def test_of_ten_thousand_learners_a_few_are_remembered() -> None:
    names = [f"here/cpu/{number}" for number in range(10_000)]
    versions = dict.fromkeys(range(24), 7)
    gathering = Gathering(dict.fromkeys(versions, (6, 7)), names)
    assert sum(gathering.joined(name, versions) for name in names) == MOST_HOLDERS
    assert not gathering.waiting


def test_those_that_were_turned_away_are_awaited_when_others_fail() -> None:
    liars = [f"liar {number}" for number in range(MOST_HOLDERS)]
    gathering = Gathering({0: (1,)}, [*liars, "honest"])
    assert all(gathering.joined(name, {0: 1}) for name in liars)
    assert not gathering.joined("honest", {0: 1})
    while orders := gathering.next_orders():
        gathering.failed(orders[0])
    assert gathering.waiting
    assert not gathering.over
    assert gathering.joined("honest", {0: 1})
    gathering.received(only(gathering))
    assert gathering.complete
