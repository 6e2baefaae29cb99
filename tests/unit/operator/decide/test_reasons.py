import re
from pathlib import Path
from typing import get_args

from diloco.spec.base import REASON
from diloco.spec.status.job import ConditionType
from diloco_operator.decide.guide import GUIDE
from diloco_operator.decide.reasons import CONDITION_MEANINGS, Reason

REPOSITORY = Path(__file__).resolve().parents[4]
SOURCES = REPOSITORY / "operator" / "diloco_operator"


def test_every_reason_has_a_meaning_and_every_warning_something_to_do() -> None:
    assert list(GUIDE) == list(Reason), "the page says that they stand in the order of their gravity"
    for reason, guide in GUIDE.items():
        assert re.fullmatch(REASON, reason)
        assert guide.meaning.endswith(".")
        assert guide.action or guide.severity == "Normal"


def test_every_reason_is_given_somewhere() -> None:
    guide = SOURCES / "decide" / "guide"
    text = "".join(path.read_text() for path in SOURCES.rglob("*.py") if guide not in path.parents)
    assert [reason for reason in Reason if f"Reason.{reason.name}" not in text] == []


def test_every_condition_type_is_explained() -> None:
    assert list(CONDITION_MEANINGS) == list(get_args(ConditionType))


def test_sections_that_the_table_points_to_are_on_the_page() -> None:
    page = (REPOSITORY / "docs/how-to/operations.md").read_text()
    named = {name for guide in GUIDE.values() for name in re.findall(r"see '([^']+)' below", guide.action)}
    assert named
    for name in named:
        assert re.search(rf"^#+ {re.escape(name)}$", page, re.MULTILINE), name
