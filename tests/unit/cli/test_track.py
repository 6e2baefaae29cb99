import sys
from pathlib import Path

import pytest

from diloco.cli.main import execute


def test_a_missing_package_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    assert execute(["track", str(tmp_path), "--tensorboard", str(tmp_path / "boards")]) == 2
    told = capsys.readouterr().err
    assert told == "diloco: --tensorboard: needs the package tensorboard; install decoupled-diloco[track]\n"
