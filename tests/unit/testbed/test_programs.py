"""Programs that the user has are used; only what is missing is built."""

from pathlib import Path

import pytest

from testbed.api_server import server
from testbed.kind import bed, go_programs, tools


@pytest.fixture(autouse=True)
def built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[object]:
    """What is built, on a machine that has nothing."""
    found: list[object] = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv(server.ASSETS, raising=False)
    monkeypatch.setattr(tools, "helm", lambda _cache: None)
    monkeypatch.setattr(go_programs, "build", lambda _cache, programs: found.append(programs))
    return found


def put(folder: Path, *names: str) -> None:
    folder.mkdir()
    for name in names:
        (folder / name).touch(mode=0o755)


def test_an_api_server_is_built_where_there_is_none(built: list[object]) -> None:
    assert "etcd, kube-apiserver, kubectl found neither in $KUBEBUILDER_ASSETS" in (server.why_there_is_none() or "")
    bed.programs()
    assert built == [go_programs.API_SERVER]


@pytest.mark.parametrize("where", ["assets", "bin"])
def test_one_that_the_user_has_is_used(
    built: list[object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str
) -> None:
    monkeypatch.setenv(server.ASSETS, str(tmp_path / "assets"))
    put(tmp_path / where, *server.NEEDED)
    bed.programs()
    assert not built
    assert server._found("etcd") == str(tmp_path / where / "etcd")


def test_one_that_lacks_a_program_is_built(
    built: list[object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(server.ASSETS, str(tmp_path / "assets"))
    put(tmp_path / "assets", "etcd", "kubectl")
    bed.programs()
    assert built == [go_programs.API_SERVER]
