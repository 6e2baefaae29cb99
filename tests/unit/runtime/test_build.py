from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from diloco import __version__
from diloco.runtime import build
from diloco.runtime.build import COMMIT, PACKED, show_build, version_text


@pytest.mark.parametrize("commit", ["0123abc", ""])
def test_metrics_name_the_version_and_a_known_commit(monkeypatch: pytest.MonkeyPatch, commit: str) -> None:
    monkeypatch.setenv(COMMIT, commit)
    registry = CollectorRegistry()
    show_build(registry)
    line = f'diloco_build_info{{commit="{commit}",version="{__version__}"}} 1.0'
    assert line in generate_latest(registry).decode().splitlines()


def test_a_package_names_the_commit_it_was_packed_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(COMMIT, raising=False)
    monkeypatch.setattr(build, "__file__", str(tmp_path / "runtime/build.py"))
    assert version_text() == __version__
    (tmp_path / PACKED).write_text("1f2e\n", encoding="ascii")
    assert version_text() == f"{__version__} (1f2e)"
