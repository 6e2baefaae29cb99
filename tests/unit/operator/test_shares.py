from hypothesis import given
from hypothesis import strategies as st

from diloco_operator.shares import Room

HOLDS = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 5), st.integers(0, 120)), max_size=60)


@given(HOLDS)
def test_what_is_held_never_exceeds_the_room_and_leaves_some_for_the_next(holds: list[tuple[str, int, int]]) -> None:
    room = Room(100)
    held: dict[tuple[str, int], int] = {}
    for tenant, holder, amount in holds:
        before = held.get((tenant, holder), 0)
        if room.hold(tenant, holder, amount):
            held[tenant, holder] = amount
        else:
            assert amount > before, "to hold less is always allowed"
    assert sum(held.values()) <= 100
    assert room.hold("another tenant", 0, 1)
    for tenant, holder in held:
        assert room.hold(tenant, holder, 0)
    assert room.hold("another tenant", 0, 0)
    assert room.hold("a", 0, 66)
    assert not room.hold("a", 0, 67)
