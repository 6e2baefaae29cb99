import pytest
from prometheus_client import CollectorRegistry, generate_latest

from diloco import __version__
from diloco.runtime.build import COMMIT, show_build


@pytest.mark.parametrize("commit", ["0123abc", ""])
def test_metrics_name_the_version_and_a_known_commit(monkeypatch: pytest.MonkeyPatch, commit: str) -> None:
    monkeypatch.setenv(COMMIT, commit)
    registry = CollectorRegistry()
    show_build(registry)
    line = f'diloco_build_info{{commit="{commit}",version="{__version__}"}} 1.0'
    assert line in generate_latest(registry).decode().splitlines()
