import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from diloco.runtime.log import about, set_up_logging


@pytest.fixture(autouse=True)
def _restored_root() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_line_for_people_names_the_process_and_what_is_not_ordinary(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(json=False, process="here/cpu/0")
    logging.getLogger("x").info("step %d", 3, extra={"fields": {"loss": 2.5}})
    logging.getLogger("x").warning("slow")
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith(" here/cpu/0 step 3 loss=2.5")
    assert second.endswith(" here/cpu/0 warning: slow")


def test_a_line_for_a_collector_is_one_json_object_with_the_fields(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(json=True, process="syncer", of={"job": "small", "namespace": "team"})
    try:
        int("two\nlines")
    except ValueError:
        logging.getLogger("x").exception("failed", extra={"fields": {"fragment": 3}})
    (line,) = capsys.readouterr().err.splitlines()
    entry = json.loads(line)
    assert (entry["process"], entry["level"], entry["message"], entry["fragment"]) == ("syncer", "ERROR", "failed", 3)
    assert (entry["job"], entry["namespace"]) == ("small", "team")
    assert "ValueError: invalid literal" in entry["exception"]


def test_a_line_for_a_collector_says_what_it_is_about(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(json=True, process="operator")
    with about(job="small", namespace="team"):
        logging.getLogger("x").info("inside")
    logging.getLogger("x").info("outside")
    inside, outside = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (inside["job"], inside["namespace"]) == ("small", "team")
    assert "job" not in outside


def test_setting_up_again_replaces_and_a_collector_gets_nothing_twice(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(json=True, process="one")
    set_up_logging(json=False, process="two")
    logging.getLogger("x").info("once")
    assert capsys.readouterr().err.count("once") == 1


@pytest.mark.parametrize("as_json", [False, True])
def test_a_text_from_elsewhere_makes_no_line_of_its_own(capsys: pytest.CaptureFixture[str], *, as_json: bool) -> None:
    set_up_logging(json=as_json, process="syncer")
    logging.getLogger("x").info(
        "%s leaves", "a/b/0\n12:00:00.000 syncer critical: \x1b[2Jgone", extra={"fields": {"k": "\r"}}
    )
    try:
        int("1\n12:00:00.000 syncer error: second")
    except ValueError:
        logging.getLogger("x").exception("failed")
    lines = capsys.readouterr().err.splitlines()
    assert not [line for line in lines if line.startswith("12:00:00.000")]
    assert all(line.isprintable() for line in lines)


def test_a_log_that_cannot_be_written_says_how_many_lines_it_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "log").open("a+") as file, Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stderr", file)
        set_up_logging(process="syncer")
        log = logging.getLogger("x")
        log.info("written")
        disk = os.dup(file.fileno())
        os.dup2(full.fileno(), file.fileno())
        log.info("lost")
        log.info("lost too")
        os.dup2(disk, file.fileno())
        os.close(disk)
        log.info("written again")
    told = [line.split(" ", 1)[1] for line in (tmp_path / "log").read_text().splitlines()]
    assert told == [
        "syncer written",
        "syncer written again",
        "syncer warning: 2 earlier lines were lost: No space left on device",
    ]
