from dataclasses import replace

import pytest

from diloco.local.chaos.spec import ChaosError, Fault, FaultKind, Manner, parse_faults
from diloco.local.targets import SpeedError, learners_named, parse_speeds

LEARNERS = ("us-east/fast/0", "us-east/fast/1", "us-west/new/0", "us-west/old/0", "us-west/old/10")


@pytest.mark.parametrize(
    ("target", "meant"),
    [
        ("*", LEARNERS),
        ("us-west", ("us-west/new/0", "us-west/old/0", "us-west/old/10")),
        ("us-west/old", ("us-west/old/0", "us-west/old/10")),
        ("us-east/fast/1", ("us-east/fast/1",)),
    ],
)
def test_a_target_is_a_learner_a_pool_a_region_or_all(target: str, meant: tuple[str, ...]) -> None:
    assert learners_named(target, LEARNERS) == meant


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("kill:us-west/old/0@step=150", Fault(FaultKind.KILL, "us-west/old/0", ("us-west/old/0",), step=150)),
        (
            "pause:us-east@step=9,seconds=2.5",
            Fault(FaultKind.PAUSE, "us-east", ("us-east/fast/0", "us-east/fast/1"), step=9, seconds=2.5),
        ),
        ("cut:us-west@step=60,seconds=20", Fault(FaultKind.CUT, "us-west", ("us-west",), step=60, seconds=20.0)),
        (
            "cut:*@rate=1,seconds=5,manner=reset",
            Fault(FaultKind.CUT, "*", ("us-east", "us-west"), rate_per_hour=1.0, seconds=5.0, manner=Manner.RESET),
        ),
        ("kill:syncer@step=40", Fault(FaultKind.KILL, "syncer", ("syncer",), step=40)),
        ("kill:*@rate=2", Fault(FaultKind.KILL, "*", LEARNERS, rate_per_hour=2.0)),
    ],
)
def test_a_fault_is_read(text: str, fault: Fault) -> None:
    assert parse_faults([text], LEARNERS) == (replace(fault, text=text),)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "use KIND:TARGET@step=N"),
        ("kill:us-west", "use KIND:TARGET@step=N"),
        ("kill:@step=1", "use KIND:TARGET@step=N"),
        ("burn:us-west@step=1", "'burn' is not a kind of fault; use kill, pause, cut"),
        ("kill:eu@step=1", "'eu' matches no learner of this job; use *, us-east/fast, us-west/new, us-west/old"),
        ("kill:us-west@soon", "'soon' is not NAME=VALUE"),
        ("kill:us-west@step=0", "step must be a whole number from 1 to 1e+12, not '0'"),
        ("kill:us-west@step=1.5", "step must be a whole number from 1 to 1e+12, not '1.5'"),
        ("kill:us-west@rate=inf", "rate must be a number from 1e-06 to 1e+06, not 'inf'"),
        ("kill:*@rate=1e-322", "rate must be a number from 1e-06 to 1e+06, not '1e-322'"),
        (f"kill:*@step={'9' * 400}", "step must be a whole number from 1 to 1e+12, not '9999"),
        ("pause:*@step=1,seconds=1e300", "seconds must be a number from 0.001 to 1e+08"),
        ("kill:us-west@step=1,rate=1", "use either step=N or rate=R"),
        ("kill:us-west@step=1,step=2", "step is given twice"),
        ("kill:us-west@step=1,seconds=3", "kill has no option 'seconds'; use step, rate"),
        ("pause:us-west@step=1", "the pause has no duration; use one such as seconds=20"),
        ("pause:us-west@step=1,seconds=2,manner=reset", "pause has no option 'manner'"),
        ("cut:us-west/old@step=1,seconds=2", "'us-west/old' is not a region of this job; use us-east, us-west or *"),
        ("cut:us-west@step=1,seconds=2,manner=gently", "manner 'gently' is unknown; use silent or reset"),
    ],
)
def test_a_fault_that_cannot_be_is_one_line_that_says_what_can(text: str, told: str) -> None:
    with pytest.raises(ChaosError) as caught:
        parse_faults([text], LEARNERS)
    assert str(caught.value).startswith(f"--chaos {text!r}: ")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_learners_are_slowed_by_name_and_the_last_word_counts() -> None:
    speeds = parse_speeds(["us-west=0.5", "us-west/old/0=0.25"], LEARNERS)
    assert speeds == {
        "us-east/fast/0": 1.0,
        "us-east/fast/1": 1.0,
        "us-west/new/0": 0.5,
        "us-west/old/0": 0.25,
        "us-west/old/10": 0.5,
    }


@pytest.mark.parametrize(
    "text", ["us-west", "=0.5", "us-west=", "us-west=2", "us-west=0", "us-west=nan", "*=1e-320", "eu=0.5"]
)
def test_a_speed_that_cannot_be_is_one_line(text: str) -> None:
    with pytest.raises(SpeedError) as caught:
        parse_speeds([text], LEARNERS)
    assert str(caught.value).startswith(f"--slow {text!r}: ")
    assert "\n" not in str(caught.value)
