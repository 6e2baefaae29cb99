import json
from pathlib import Path

import pytest

from testbed.kind.cache import Cache, ClusterRecord, State


def test_state_is_read_as_it_was_written(cache: Cache) -> None:
    assert cache.state == State()
    state = State(engine_pid=17).with_cluster("diloco-a", ClusterRecord("x", complete=True, kept=True))
    cache.write(state)
    assert cache.state == state
    assert cache.state.without_cluster("diloco-a") == State(engine_pid=17)


def test_state_of_a_newer_version_is_read_as_far_as_it_is_known(cache: Cache) -> None:
    written = {"clusters": {"diloco-a": {"identity": "x", "complete": True, "mood": "good"}}, "weather": "fine"}
    (cache.root / "state.json").write_text(json.dumps(written))
    assert cache.state == State().with_cluster("diloco-a", ClusterRecord("x", complete=True))


def test_it_is_where_caches_belong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Cache.of_user().root == tmp_path / "decoupled-diloco"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert Cache.of_user().root == tmp_path / "home/.cache/decoupled-diloco"


def test_a_cluster_is_used_until_its_last_user_has_gone(cache: Cache) -> None:
    with cache.using("diloco-a"):
        with cache.using("diloco-a"):
            assert cache.is_used("diloco-a")
        assert cache.is_used("diloco-a")
        assert not cache.is_used("diloco-b")
    assert not cache.is_used("diloco-a")
