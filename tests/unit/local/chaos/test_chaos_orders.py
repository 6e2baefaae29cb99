"""The faults of a session: the same for a seed, at the rates that were asked for, and only for what was named."""

import pytest

from diloco.local.chaos.schedule import MOST_FAULTS, plan_faults
from diloco.local.chaos.spec import CLUSTER, LOCAL, ChaosError, Fault, Grammar, parse_faults

LEARNERS = ("us-east/fast/0", "us-east/fast/1", "us-west/new/0", "us-west/old/0")
NODES = {"us-east/fast/0": "node-a", "us-east/fast/1": "node-b", "us-west/new/0": "node-a"}


def planned(*texts: str, seconds: float = 3600.0, seed: int = 1, grammar: Grammar = CLUSTER) -> tuple[Fault, ...]:
    return plan_faults(parse_faults(texts, LEARNERS, grammar), seconds, seed, NODES)


def test_a_script_has_its_times_and_names() -> None:
    texts = ("cut:us-west@at=9,seconds=2,manner=reset", "kill:syncer@at=3", "kill:us-east@at=5")
    cut, syncer, region = parse_faults(texts, LEARNERS, LOCAL)
    assert planned(*texts, seconds=10.0, grammar=LOCAL) == (syncer, region, cut)
    assert (syncer.at_seconds, region.at_seconds, cut.at_seconds) == (3.0, 5.0, 9.0)


@pytest.mark.parametrize(
    ("unit", "victims"),
    [
        ("learner", {learner: (learner,) for learner in LEARNERS}),
        (
            "pool",
            {"us-east/fast": LEARNERS[:2], "us-west/new": ("us-west/new/0",), "us-west/old": ("us-west/old/0",)},
        ),
        ("region", {"us-east": LEARNERS[:2], "us-west": LEARNERS[2:]}),
        ("node", {"node-a": ("us-east/fast/0", "us-west/new/0"), "node-b": ("us-east/fast/1",)}),
    ],
)
@pytest.mark.parametrize("kind", ["kill", "evict"])
def test_each_unit_fails_as_a_whole(kind: str, unit: str, victims: dict[str, tuple[str, ...]]) -> None:
    found = planned(f"{kind}:*@rate=60,by={unit}")
    assert {fault.target: fault.victims for fault in found} == victims
    assert {fault.kind for fault in found} == {kind}
    assert len({fault.at_seconds for fault in found}) == len(found)


def test_a_rate_in_a_script_is_of_each_victim() -> None:
    found = planned("pause:us-west@rate=60,seconds=1", grammar=LOCAL)
    assert {fault.victims for fault in found} == {("us-west/new/0",), ("us-west/old/0",)}
    assert all(fault.seconds == 1.0 for fault in found)
    assert {fault.victims for fault in planned("kill:syncer@rate=60")} == {("syncer",)}
    cuts = planned("cut:*@rate=60,seconds=20", grammar=LOCAL)
    assert {(fault.victims, fault.seconds) for fault in cuts} == {(("us-west",), 20.0), (("us-east",), 20.0)}


def test_faults_by_rate_say_so_and_those_of_a_node_whom_it_may_have() -> None:
    found = planned("kill:us-east@rate=60,by=node")
    assert {(fault.target, fault.rate_per_hour, fault.around) for fault in found} == {
        (node, 60.0, ("us-east/fast/0", "us-east/fast/1")) for node in ("node-a", "node-b")
    }
    script = planned("kill:us-west@rate=600", "kill:us-west@at=5")
    assert {fault.target for fault in script if fault.rate_per_hour is None} == {"us-west"}
    assert {fault.target for fault in script if fault.rate_per_hour} == {"us-west/new/0", "us-west/old/0"}
    assert not any(fault.around for fault in script)


@pytest.mark.parametrize(
    ("texts", "seconds", "complaint"),
    [
        ((), 10.0, "nothing to do; use --fault"),
        (("kill:*@rate=1e5",), 36000.0, f"more than {MOST_FAULTS} faults"),
        (("kill:syncer@at=11",), 10.0, "--fault 'kill:syncer@at=11': at=11 is after the end; use at most --for's 10 s"),
    ],
)
def test_what_cannot_be_done_is_one_line(texts: tuple[str, ...], seconds: float, complaint: str) -> None:
    with pytest.raises(ChaosError) as raised:
        planned(*texts, seconds=seconds)
    assert complaint in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("pause:us-west@at=1,seconds=2", "'pause' is not a kind of fault; use kill, evict"),
        ("kill:us-west@step=1", "kill has no option 'step'; use at, rate, by"),
        ("kill:us-west@at=1,by=pool", "by goes with a rate: at one time all that are named fail at once; leave it out"),
        ("kill:us-west@rate=1,by=rack", "by 'rack' is not known here; use learner, pool, region, node"),
        ("kill:syncer@rate=1,by=pool", "kill has no option 'by'; use at, rate"),
        ("evict:us-west@at=-1", "at must be a number from 0 to 1e+06"),
        ("evict:us-west", "use KIND:TARGET@at=N or KIND:TARGET@rate=R"),
    ],
)
def test_a_cluster_takes_what_can_be_done_there(text: str, complaint: str) -> None:
    with pytest.raises(ChaosError) as raised:
        parse_faults((text,), LEARNERS, CLUSTER)
    assert complaint in str(raised.value)
    assert str(raised.value).startswith(f"--fault '{text}'")
