import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from diloco.cli.main import execute
from diloco.spec.status.curves import FILE, CurveRow


def test_a_missing_package_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    assert execute(["track", str(tmp_path), "--tensorboard", str(tmp_path / "boards")]) == 2
    told = capsys.readouterr().err
    assert told == "diloco: --tensorboard: needs the package tensorboard; run pip install '.[track]' in a clone\n"


def test_what_a_restarted_syncer_merges_again_replaces_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "syncer").mkdir()
    rows = [(1, 100, 5.0), (1, 200, 4.0), (1, 300, 3.0), (2, 250, 3.5), (2, 350, 2.5)]
    with (tmp_path / "syncer" / FILE).open("w") as file:
        for epoch, tokens, loss in rows:
            row = CurveRow(
                epoch=epoch,
                unix_seconds=float(tokens),
                merged_tokens=tokens,
                inner_steps=tokens,
                tokens_per_second=1.0,
                eval_loss=loss,
            )
            file.write(row.model_dump_json() + "\n")
    assert execute(["track", str(tmp_path), "--tensorboard", str(tmp_path / "boards")]) == 0
    read = EventAccumulator(str(tmp_path / "boards"))
    read.Reload()
    shown = [(one.step, one.value) for one in read.Scalars("job/eval_loss")]
    assert shown == [(100, 5.0), (200, 4.0), (250, 3.5), (350, 2.5)]
