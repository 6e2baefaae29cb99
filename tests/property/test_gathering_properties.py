"""Whatever learners do, the gathering ends, and with every version that somebody honest holds."""

from hypothesis import given
from hypothesis import strategies as st

from diloco.syncer.recovery.gathering import MOST_OF_ONE, MOST_UNDER_WAY, Gathering, Order

FRAGMENTS = 6
VERSIONS = st.lists(st.integers(0, 5), min_size=FRAGMENTS, max_size=FRAGMENTS)
LIARS = st.dictionaries(st.sampled_from("abc"), VERSIONS, max_size=3)
HONEST = st.dictionaries(st.sampled_from("xyz"), VERSIONS, max_size=3)


def held(versions: list[int]) -> dict[int, int]:
    return dict(enumerate(versions))


@given(st.lists(st.integers(0, 5), min_size=FRAGMENTS, max_size=FRAGMENTS), LIARS, HONEST, st.randoms())
def test_every_version_that_an_honest_learner_holds_is_found(
    newest: list[int], liars: dict[str, list[int]], honest: dict[str, list[int]], random: object
) -> None:
    wanted = {p: tuple(range(1, last + 1)) for p, last in enumerate(newest)}
    everyone = [*liars, *honest]
    gathering = Gathering(wanted, everyone)
    coming = sorted(everyone, key=lambda _: random.random())  # type: ignore[attr-defined]
    got: dict[int, int] = {}
    open_orders: list[Order] = []
    for _ in range(1000):
        if gathering.over:
            break
        if coming and (random.random() < 0.5 or not open_orders):  # type: ignore[attr-defined]
            name = coming.pop()
            gathering.joined(name, held((liars | honest)[name]))
        open_orders = [*gathering.under_way, *gathering.next_orders()]
        assert len(gathering.under_way) <= MOST_UNDER_WAY
        assert all(sum(o.learner == name for o in gathering.under_way) <= MOST_OF_ONE for name in everyone)
        if open_orders:
            order = random.choice(open_orders)  # type: ignore[attr-defined]
            if order.learner in liars:
                gathering.failed(order)
            else:
                gathering.received(order)
                got[order.fragment] = order.version
    assert gathering.over
    for p, last in enumerate(newest):
        best = max([min(versions[p], 0) if versions[p] > last else versions[p] for versions in honest.values()] or [0])
        assert got.get(p, 0) == best
