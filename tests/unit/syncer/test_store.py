import pytest
import torch

from diloco.core.merge.fragment_merge import MergeTarget
from diloco.syncer.store import FragmentStore, digest_of
from diloco.wire.part_messages import payload_digest
from tests.support.syncer_peers import LAYOUT


def filled(older_versions: int = 0, *, residuals: bool = False) -> FragmentStore:
    store = FragmentStore(LAYOUT, older_versions=older_versions, residuals=residuals)
    for fragment in LAYOUT.fragments:
        store.put(fragment.index, 3, torch.full((fragment.numel,), float(fragment.index)))
    return store


def merge(store: FragmentStore, fragment: int, value: float) -> MergeTarget:
    """What a merge does: fill the target, then make it current."""
    made = store.target(fragment)
    made.merge.parameters.fill_(value)
    made.merge.momentum.fill_(value / 2)
    if made.rest is not None:
        made.rest.fill_(value / 4)
    version = store.current(fragment).version + 1
    store.commit(fragment, version, made, digest_of(made.merge.parameters))
    return made.merge


def test_a_pull_under_way_keeps_reading_the_old_version() -> None:
    store = filled()
    view = store.current(1).view
    before = bytes(view)
    merge(store, 1, 7.0)
    assert bytes(view) == before
    assert store.current(1).version == 4
    assert store.versions == (3, 4)
    assert torch.equal(store.current(1).parameters, torch.full((6,), 7.0))


def test_the_digest_is_that_of_the_bytes_a_pull_sends() -> None:
    current = filled().current(0)
    assert current.digest == payload_digest(current.view)
    assert len(current.view) == 40


def test_momentum_is_updated_in_place_unless_a_checkpoint_reads_it() -> None:
    store = filled()
    assert merge(store, 0, 2.0).momentum is store.momentum(0)
    image = store.hold()
    held = image.momentum[0].clone()
    assert merge(store, 0, 4.0).momentum is not image.momentum[0]
    assert torch.equal(image.momentum[0], held)
    assert torch.equal(store.momentum(0), torch.full((10,), 2.0))
    assert image.fragments[0].version == 4
    store.release()
    momentum = store.momentum(0)
    assert merge(store, 0, 6.0).momentum is momentum


def test_what_a_checkpoint_does_not_read_is_updated_in_place() -> None:
    store = filled(residuals=True)
    store.hold(but={0})
    kept = [(store.momentum(fragment), store.residual(fragment)) for fragment in (0, 1)]
    for fragment in (0, 1):
        merge(store, fragment, 4.0)
    assert (store.momentum(0), store.residual(0)) == kept[0]
    assert store.momentum(1) is not kept[1][0]
    assert store.residual(1) is not kept[1][1]


def test_residuals_are_kept_like_momentum_where_updates_are_encoded() -> None:
    store = filled(residuals=True)
    assert torch.equal(store.residual(0), torch.zeros(10))  # type: ignore[arg-type]  # it has one
    merge(store, 0, 2.0)
    residual = store.residual(0)
    image = store.hold()
    assert image.residuals[0] is residual
    merge(store, 0, 4.0)
    assert torch.equal(image.residuals[0], torch.full((10,), 0.5))
    assert torch.equal(store.residual(0), torch.full((10,), 1.0))  # type: ignore[arg-type]  # it has one
    store.release()
    residual = store.residual(0)
    merge(store, 0, 6.0)
    assert store.residual(0) is residual


def test_the_rest_is_added_to_a_fragment_that_is_sent_whole_from_now_on() -> None:
    store = filled()
    store.put(0, 3, torch.ones(10), torch.zeros(10), torch.full((10,), 0.25))
    assert torch.equal(store.current(0).parameters, torch.full((10,), 1.25))
    assert store.current(0).digest == payload_digest(store.current(0).view)


@pytest.mark.parametrize(("older_versions", "there"), [(0, [6]), (2, [4, 5, 6])])
def test_as_many_older_versions_are_kept_as_asked(older_versions: int, there: list[int]) -> None:
    store = filled(older_versions)
    for value in (1.0, 2.0, 3.0):
        merge(store, 0, value)
    assert [version for version in range(10) if store.base(0, version) is not None] == there
    if 4 in there:
        assert torch.equal(store.base(0, 4), torch.full((10,), 1.0))  # type: ignore[arg-type]
