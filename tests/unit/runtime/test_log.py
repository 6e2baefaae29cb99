import json
import logging
from collections.abc import Iterator

import pytest

from diloco.runtime.log import set_up_logging


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
    set_up_logging(json=True, process="syncer")
    try:
        int("two\nlines")
    except ValueError:
        logging.getLogger("x").exception("failed", extra={"fields": {"fragment": 3}})
    (line,) = capsys.readouterr().err.splitlines()
    entry = json.loads(line)
    assert (entry["process"], entry["level"], entry["message"], entry["fragment"]) == ("syncer", "ERROR", "failed", 3)
    assert "ValueError: invalid literal" in entry["exception"]


def test_setting_up_again_replaces_and_a_collector_gets_nothing_twice(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(json=True, process="one")
    set_up_logging(json=False, process="two")
    logging.getLogger("x").info("once")
    assert capsys.readouterr().err.count("once") == 1
