"""There is one version number, `diloco.__version__`; what cannot read it is held to it."""

from pathlib import Path

import yaml

from diloco import __version__

REPOSITORY = Path(__file__).resolve().parents[3]


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((REPOSITORY / "charts/diloco-operator/Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
