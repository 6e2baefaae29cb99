"""What ``diloco plan`` tells people and programs."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from diloco.cli.manifests.plan_document import document
from diloco.cli.manifests.plan_view import needs_table, plan_view
from diloco.plan.memory import Passes
from diloco.plan.plan import Counted, Plan, make_plan
from diloco.plan.verdict import FitKind
from diloco.simulate.planning import trial
from diloco.simulate.planning.tried import tried
from diloco.world.reading import read_world
from tests.support.drawn import drawn
from tests.support.planned_job import job


def plan(
    links: list[str],
    steps: list[str],
    model_size: int | Sequence[int] | None = None,
    counted: Counted | None = None,
    **changes: Any,
) -> Plan:
    made = job(**changes)
    return make_plan(made, read_world(made.spec, links, steps), model_size, counted)


def text_of(made: Plan) -> str:
    return " ".join(drawn(plan_view(made, tried(made)), 200).split())


def document_of(made: Plan) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(document(made, tried(made)), allow_nan=False))
    return found


def test_it_says_which_region_needs_more_connections_than_it_has() -> None:
    regions = [{"name": "west", "connections": 1, "pools": [{"name": "a", "learners": 1}]}]
    made = plan(["west=10Gbit/s,300ms"], ["west=0.001"], 10**9, regions=regions, model={"entrypoint": "mine:make"})
    needed = tried(made).needs
    (region,) = needed.regions
    assert region.connections_needed is not None
    assert region.connections_needed > 1
    assert region.connections == 1
    assert document_of(made)["needs"]["regions"][0]["connections"] == 1
    assert f"{region.connections_needed} a learner (it has 1)" in drawn(needs_table(needed), 200)


WEST = [{"name": "west", "pools": [{"name": "a", "learners": 2}]}]
OWN = {"entrypoint": "mine:make"}


def over_5_gbits(step: float, round_trip_ms: int = 94) -> Plan:
    """Two learners with eight connections each, which over 94 ms carry 2.86 Gbit/s."""
    return plan([f"west=5Gbit/s,{round_trip_ms}ms"], [f"*={step}"], 10**9, regions=WEST, model=OWN)


def test_what_connections_limit_more_connections_mend_and_nothing_else() -> None:
    made = over_5_gbits(0.7)
    found = tried(made)
    assert "2.86 Gbit/s that 8 connections of each learner carry of its 5 Gbit/s" in found.fit.reason
    assert [str(remedy) for remedy in found.remedies] == ["regions[west].connections: 12"]
    (link, _) = document_of(made)["links"]
    assert (link["link_bytes_per_second"], link["bytes_per_second"]) == (625e6, pytest.approx(357e6, rel=0.01))
    assert "2.86 Gbit/s of 5 Gbit/s" in text_of(made)


def test_where_the_link_is_too_thin_as_well_the_rest_is_advised_on_top() -> None:
    found = tried(over_5_gbits(0.4)).remedies
    assert [remedy.kind for remedy in found] == ["Encoding", "Interval", "Rate", "StepTime"]
    assert all(str(remedy).startswith("regions[west].connections: 15") for remedy in found)
    assert "Gbit/s on the link west" in str(found[2])


def test_more_connections_than_a_job_may_have_are_not_advised() -> None:
    assert "regions[west].connections: 64" in str(tried(over_5_gbits(0.7, 1000)).remedies[-1])


def test_without_step_times_the_plan_shows_the_shortest_and_tries_others() -> None:
    made = tried(plan(["*=1Mbit/s,20ms"], []))
    assert made.fit.kind is FitKind.STEP_TIME_UNKNOWN
    assert made.smallest_step_seconds is not None
    times = made.step_times
    assert [one.fit.fits for one in times] == [one.seconds >= made.smallest_step_seconds for one in times]
    assert {one.fit.fits for one in times} == {True, False}
    assert tried(plan(["*=1Mbit/s,20ms"], ["*=1"])).step_times == ()
    told = text_of(plan(["*=1Mbit/s,20ms"], []))
    assert "It fits with inner steps of" in told


FAR = ["*=10Gbit/s,3s"]
MANY = {"fragments": 96, "interval": 96, "overlap": 1}


def with_learners(number: int) -> list[dict[str, Any]]:
    each = [{"name": "p", "learners": number}]
    return [{"name": name, "pools": each} for name in ("east", "west")]


def test_what_is_too_much_to_simulate_with_many_learners_is_with_few() -> None:
    training = {"tokens": 10**9, "sequenceLength": 16, "batchSize": 4}
    made = plan(FAR, ["*=0.5"], 13_000_000, regions=with_learners(8), sync=MANY, model=OWN, training=training)
    found = tried(made)
    assert found.fit.kind is FitKind.OVERLAP_TOO_SHORT
    assert [str(remedy) for remedy in found.remedies] == ["sync.overlap: Auto"]
    assert found.forecast is not None


def test_what_cannot_be_simulated_does_not_count_as_fitting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "MOST_EVENTS", 100)
    made = plan(["*=10Gbit/s,1ms"], ["*=0.5"])
    told = document_of(made)
    assert (told["fits"], told["kind"], told["forecast"]) == (False, "NotSimulated", None)
    assert (told["remedies"], told["recommendation"]) == ([], None)
    assert "fits by bytes alone: NotSimulated" in text_of(made)
    assert "no interval could be simulated shortly, so this is by bytes alone" in text_of(made)
    (step, *_) = tried(plan(["*=1Mbit/s,20ms"], [])).step_times
    assert not step.fit.fits


def test_a_job_of_few_intervals_has_no_forecast() -> None:
    short, long = (plan(["*=10Gbit/s,1ms"], ["*=0.5"], sync={"fragments": 24, "interval": of}) for of in (96, 72))
    assert tried(long).forecast is not None
    assert document_of(short)["no_forecast"].endswith("steps a learner are fewer than 4 intervals")
    assert document_of(short)["forecast"] is None
    assert "No forecast: " in text_of(short)


def test_a_model_that_a_device_cannot_hold_is_told_before_it_is_tried() -> None:
    made = plan(["west=10Gbit/s,1ms"], ["*=500"], 70 * 10**9, regions=WEST, model=OWN)
    assert tried(made).fit.fits
    assert made.memory.device_bytes == 5 * 4 * 70 * 10**9
    small = replace(made, device_bytes=80 * 2**30)
    assert document_of(small)["fits"] is False
    assert document_of(small)["memory"]["device_bytes"] == 1.4e12
    told = text_of(small)
    assert "planned does not fit: DeviceTooSmall" in told
    assert "a learner needs at least 1.40 TB of its device, which has 85.9 GB" in told


def test_activations_count_for_a_device_and_operations_for_its_speed() -> None:
    counted = Counted(flops_of_token=3 * 10**11, passes={"west/a": Passes(2, 10**10)})
    regions = [{"name": "west", "pools": [{"name": "a", "learners": 2, "processesPerNode": 16, "batchSize": 16}]}]
    made = plan(["west=10Gbit/s,1ms"], ["*=2"], 28 * 10**9, counted, regions=regions, model=OWN)
    assert made.memory.step_bytes == 35 * 10**9 + 10**10
    assert [replace(made, device_bytes=size * 10**9).device_too_small for size in (44, 46)] == [True, False]
    tokens = 16 * made.job.spec.training.sequence_length
    assert made.device_flops_per_second == {"west/a": 3 * 10**11 * tokens / (2 * 16)}
    assert document_of(made)["compute"]["flops_of_token"] == 3 * 10**11
    told = text_of(made)
    assert "35.0 GB of a learner's device, 10.0 GB there for activations of 2 sequence(s) in BF16" in told
    assert "A token takes 300 G operations of matrix products, forward and backward; a device computes" in told


def unit(processes: int, **changes: Any) -> Plan:
    """Two learners of 28B parameters."""
    pool = {"name": "a", "learners": 2, "processesPerNode": processes, "batchSize": 16}
    regions = [{"name": "west", "pools": [pool]}]
    made = plan(["syncer=25Gbit/s"], ["*=30"], 28 * 10**9, regions=regions, model=OWN, **changes)
    return replace(made, device_bytes=80 * 10**9)


def test_more_processes_hold_a_model_that_one_device_cannot() -> None:
    small, large = unit(4), unit(8)
    assert [document_of(one)["fits"] for one in (small, large)] == [False, True]
    assert "more processes a learner (FSDP)" in text_of(small)
    told = text_of(large)
    assert "learners number processes step" in told
    assert "west/a 2 8 30 s" in told
    assert "70.0 GB of a learner's device" in told
    assert document_of(large)["learners"][0]["processes"] == 8


def test_it_says_what_the_syncer_carries_and_needs() -> None:
    made = unit(8)
    told = text_of(made)
    assert "syncer.storage.size: 10Gi is too small; use at least 1.35 TB" in told
    assert "The syncer receives 156 MB/s and sends 311 MB/s, which keeps 0.36 core(s) busy." in told
    assert "if steps take at least 7 s (BF16 up, F32 down) or 1.8 s (Int4 up, Int8 down)." in told
    enough = unit(8, syncer={"storage": {"size": "1400G"}})
    assert "storage.size" not in text_of(enough)
    assert document_of(made)["syncer"]["limits"][1]["downlink"] == "Int8"
    assert document_of(made)["memory"]["disk_bytes"] == made.memory.disk_bytes


def test_the_document_is_json_and_holds_the_verdict_and_the_remedies() -> None:
    training = {"tokens": 10_000_000, "sequenceLength": 16, "batchSize": 4}
    told = document_of(plan(["west=100kbit/s,80ms"], ["*=0.2"], training=training))
    assert (told["job"], told["fits"], told["kind"]) == ("planned", False, "LinkTooThin")
    assert [link["name"] for link in told["links"]] == ["east", "west", "of the syncer"]
    assert told["links"][0]["bytes_per_second"] is None
    assert told["links"][1]["down_share"] > 1
    shares = [group["merged_share"] for group in told["learners"]]
    assert shares[0] > 0.8
    assert all(share is None or share < 0.5 for share in shares[1:])
    kinds = {remedy["kind"]: remedy["changes"] for remedy in told["remedies"]}
    assert kinds["Interval"][0]["field"] == "sync.interval"
    assert kinds["Rate"][0]["link"] == "west"
    assert kinds["StepTime"][0]["step_time_factor"] > 1
    assert told["recommendation"] is None
    assert told["assumed"]


def test_the_document_says_what_is_unknown_by_null() -> None:
    told = document_of(plan([], []))
    assert (told["fits"], told["kind"]) == (False, "StepTimeUnknown")
    assert told["links"][0]["up_share"] is None
    assert told["learners"][0]["merged_share"] is None


def test_how_uneven_the_fragments_are_is_told_and_counted() -> None:
    model = {"entrypoint": "mine:make"}
    uneven, even = (
        plan(["*=200kbit/s"], ["*=1"], numels, model=model) for numels in ([10_000] + [1000] * 23, [1375] * 24)
    )
    assert "in 24 fragments, the largest 7.27 times the mean, one every" in text_of(uneven)
    assert (tried(uneven).fit.merged_share or 1) < (tried(even).fit.merged_share or 0)
