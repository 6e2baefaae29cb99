"""The faults of a session: the same for a seed, at the rates that were asked for, and only for what was named."""

import pytest

from diloco.local.chaos.schedule import MOST_FAULTS, Rate, Request, Unit, plan_faults, units
from diloco.local.chaos.spec import CLUSTER, LOCAL, ChaosError, Fault, FaultKind, parse_faults

LEARNERS = ("us-east/fast/0", "us-east/fast/1", "us-west/new/0", "us-west/old/0")
NODES = {"us-east/fast/0": "node-a", "us-east/fast/1": "node-b", "us-west/new/0": "node-a"}
KILL = Rate(FaultKind.KILL, Unit.LEARNER, 60.0)


def planned(*rates: Rate, seconds: float = 3600.0, seed: int = 1, only: tuple[str, ...] = ()) -> tuple[Fault, ...]:
    return plan_faults(Request(seconds, seed, rates=rates, only=only), LEARNERS, NODES)


def test_a_script_has_its_times_and_names() -> None:
    texts = ("cut:us-west@at=9,seconds=2,manner=reset", "kill:syncer@at=3", "kill:us-east@at=5")
    found = plan_faults(Request(10.0, faults=parse_faults(texts, LEARNERS, LOCAL)), LEARNERS)
    cut, syncer, region = parse_faults(texts, LEARNERS, LOCAL)
    assert found == (syncer, region, cut)
    assert [one.at_seconds for one in found] == [3.0, 5.0, 9.0]


@pytest.mark.parametrize(
    ("unit", "names"),
    [
        (Unit.LEARNER, set(LEARNERS)),
        (Unit.POOL, {"us-east/fast", "us-west/new", "us-west/old"}),
        (Unit.REGION, {"us-east", "us-west"}),
        (Unit.NODE, {"node-a", "node-b"}),
        (Unit.SYNCER, {"syncer"}),
    ],
)
def test_each_unit_fails_as_a_whole(unit: Unit, names: set[str]) -> None:
    found = planned(Rate(FaultKind.KILL, unit, 60.0))
    assert {fault.target for fault in found} == names
    assert all(fault.victims == units(unit, LEARNERS, NODES)[fault.target] for fault in found)


def test_a_rate_in_a_script_is_of_each_victim() -> None:
    faults = parse_faults(("pause:us-west@rate=60,seconds=1",), LEARNERS, LOCAL)
    found = plan_faults(Request(3600.0, faults=faults), LEARNERS)
    assert {fault.victims for fault in found} == {("us-west/new/0",), ("us-west/old/0",)}
    assert all(fault.seconds == 1.0 for fault in found)


def test_faults_by_rate_say_so_and_those_of_a_node_whom_it_may_have() -> None:
    found = planned(Rate(FaultKind.KILL, Unit.NODE, 60.0), only=("us-east",))
    assert {(fault.target, fault.rate_per_hour, fault.around) for fault in found} == {
        (node, 60.0, ("us-east/fast/0", "us-east/fast/1")) for node in ("node-a", "node-b")
    }
    faults = parse_faults(("kill:us-west@rate=600", "kill:us-west@at=5"), LEARNERS, CLUSTER)
    script = plan_faults(Request(3600.0, faults=faults), LEARNERS)
    assert {fault.target for fault in script if fault.rate_per_hour is None} == {"us-west"}
    assert {fault.target for fault in script if fault.rate_per_hour} == {"us-west/new/0", "us-west/old/0"}
    assert not any(fault.around for fault in (*script, *planned(KILL)))


def test_only_what_is_named_fails_and_as_it_would_beside_others() -> None:
    cuts = planned(Rate(FaultKind.CUT, Unit.REGION, 60.0, 20.0), only=("us-west",))
    assert {(fault.victims, fault.seconds) for fault in cuts} == {(("us-west",), 20.0)}
    alone = planned(KILL, only=("us-west/old",))
    assert alone == tuple(fault for fault in planned(KILL) if fault.target == "us-west/old/0")


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        (Request(10.0), "nothing to do; use --fault, or a rate"),
        (Request(10.0, rates=(KILL,), only=("us-wets",)), "--only 'us-wets': 'us-wets' matches no learner"),
        (Request(36000.0, rates=(Rate(FaultKind.KILL, Unit.LEARNER, 1e5),)), f"more than {MOST_FAULTS} faults"),
        (
            Request(10.0, faults=parse_faults(("kill:syncer@at=11",), LEARNERS, LOCAL)),
            "--fault 'kill:syncer@at=11': at=11 is after the end; use at most --for's 10 s",
        ),
    ],
)
def test_what_cannot_be_done_is_one_line(request_: Request, complaint: str) -> None:
    with pytest.raises(ChaosError) as raised:
        plan_faults(request_, LEARNERS)
    assert complaint in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("pause:us-west@at=1,seconds=2", "'pause' is not a kind of fault; use kill, evict"),
        ("kill:us-west@step=1", "kill has no option 'step'; use at, rate"),
        ("evict:us-west@at=-1", "at must be a number from 0 to 1e+06"),
        ("evict:us-west", "use KIND:TARGET@at=N or KIND:TARGET@rate=R"),
    ],
)
def test_a_cluster_takes_what_can_be_done_there(text: str, complaint: str) -> None:
    with pytest.raises(ChaosError) as raised:
        parse_faults((text,), LEARNERS, CLUSTER)
    assert complaint in str(raised.value)
    assert str(raised.value).startswith(f"--fault '{text}'")
