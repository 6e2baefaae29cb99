import math
from pathlib import Path

import pytest

from diloco.core.account.time_class import TimeClass
from diloco.local.view.time_classes import WORDS, goodput_of, losses_text, shares_of

MEASUREMENTS = Path(__file__).parents[4] / "docs/reference/measurements.md"


def test_shares_have_every_class_and_are_one_together() -> None:
    shares = shares_of({"merged": 3.0, "late": 1.0})
    assert set(shares) == set(TimeClass)
    assert math.fsum(shares.values()) == pytest.approx(1.0)
    assert (shares[TimeClass.MERGED], shares[TimeClass.LATE], shares[TimeClass.AWAY]) == (0.75, 0.25, 0.0)


def test_no_time_has_no_shares() -> None:
    assert shares_of({}) == {}
    assert shares_of(dict.fromkeys(TimeClass, 0.0)) == {}
    assert losses_text({}) == ""


def test_a_class_of_a_newer_syncer_is_away_here() -> None:
    assert shares_of({"merged": 3.0, "dreaming": 1.0})[TimeClass.AWAY] == 0.25


def test_the_largest_losses_come_first_and_what_is_tiny_is_left_out() -> None:
    shares = shares_of({"merged": 800.0, "late": 50.0, "away": 148.0, "lost": 2.0})
    assert losses_text(shares) == "away 14.8 %, too late 5.0 %"
    assert losses_text(shares, most=1) == "away 14.8 %"


def test_goodput_is_every_inner_step_whatever_became_of_it() -> None:
    shares = shares_of({"merged": 4.0, "late": 1.0, "lost": 1.0, "waiting": 1.0, "away": 1.0})
    assert goodput_of(shares) == pytest.approx(0.75)
    assert goodput_of({}) is None


def test_the_documentation_tells_every_class_by_the_name_it_is_shown_as() -> None:
    rows = [line.split("|")[1:3] for line in MEASUREMENTS.read_text().splitlines() if line.startswith("| `")]
    told = {name.strip(" `"): shown.strip() for name, shown in rows if name.strip(" `") in set(TimeClass)}
    assert told == {one.value: WORDS[one].title for one in TimeClass}
