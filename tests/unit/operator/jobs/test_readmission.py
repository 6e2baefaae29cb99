"""Learners that are let back in by an annotation, in a virtual cluster, and what is said of those that it names."""

from diloco.spec.names.learner_orders import READMITTED_FILE
from diloco_operator.api_server.errors import ApiError, Call, of_status
from testbed.virtual_cluster.cluster_world import ClusterWorld
from testbed.virtual_cluster.world_pods import crashed
from tests.unit.operator.jobs.training_cluster import (
    GIVEN_UP,
    MIDDLE,
    gated,
    give_up,
    given_up,
    pool,
    reasons,
    uids,
)

NOT_OUT = "metadata.annotations[diloco.dev/readmit]: {} not given up; {}"


def ignored(world: ClusterWorld) -> list[tuple[str, str]]:
    """Type and note of the events that say that an order is ignored."""
    return [(event["type"], event["note"]) for event in world.api.events if event["reason"] == "ReadmissionIgnored"]


def no_annotation(verb: str, kind: str, name: str, _: object) -> ApiError | None:
    """A server that lets nobody change the job's metadata."""
    refused = (verb, kind) == ("overwrite", "DiLoCoJob")
    return of_status(Call("patch", kind, "team", name), 503, {"message": "later"}) if refused else None


def test_the_annotation_lets_it_back_in_once() -> None:
    w = given_up()
    before = uids(w)
    del w.pods.troubles[MIDDLE]
    w.annotate(readmit=GIVEN_UP)
    w.run(60)
    assert gated(w) == set()
    assert all(uids(w)[name] == before[name] for name in before if name != MIDDLE)
    assert GIVEN_UP in w.syncers["demo"].joined
    assert "diloco.dev/readmit" not in w.job()["metadata"]["annotations"]
    assert READMITTED_FILE not in w.home.of_kind("ConfigMap")["demo-job"]["data"]
    assert "givenUp" not in pool(w)
    assert "held" not in pool(w)
    assert reasons(w).count("LearnerReadmitted") == 1
    assert w.condition("Degraded")["status"] == "False"
    give_up(w)
    w.run(60)
    assert gated(w) == {MIDDLE}, "the annotation holds once"


def test_an_order_is_kept_until_a_syncer_that_was_away_has_taken_it() -> None:
    w = given_up()
    w.annotate(readmit=GIVEN_UP)
    w.reconcile()
    told = w.home.of_kind("ConfigMap")["demo-job"]["data"][READMITTED_FILE]
    syncer = next(iter(w.home.pods_of("syncer", "demo")))
    w.pods.pods[syncer]["status"] = crashed(1, "no disk")
    w.pods.set_controller(w.home.of_kind("Deployment")["demo-syncer"])
    w.new_operator()
    w.reconcile()
    assert w.home.of_kind("ConfigMap")["demo-job"]["data"][READMITTED_FILE] == told
    assert w.job()["metadata"]["annotations"]["diloco.dev/readmit"] == GIVEN_UP


def test_what_is_wrong_beside_the_right_one_is_told_and_keeps_nobody_out() -> None:
    w = given_up()
    del w.pods.troubles[MIDDLE]
    w.annotate(readmit=f"us-west/old/2,us-east/new/0,{GIVEN_UP},us-west/old/7")
    w.run(60)
    assert gated(w) == set()
    assert ignored(w)[0] == ("Warning", NOT_OUT.format("us-west/old/2, us-east/new/0 are", f"{GIVEN_UP} is"))
    assert reasons(w).count("LearnerReadmitted") == 1
    assert w.job()["metadata"]["annotations"]["diloco.dev/readmit"] == "us-west/old/7"
    assert (w.condition("Degraded")["reason"], w.condition("Degraded")["message"]) == (
        "ReadmissionIgnored",
        "metadata.annotations[diloco.dev/readmit]: 'us-west/old/7' is no learner of this job; use REGION/POOL/INDEX",
    )


def test_an_order_that_was_obeyed_is_not_called_needless() -> None:
    w = given_up()
    del w.pods.troubles[MIDDLE]
    w.annotate(readmit=GIVEN_UP)
    w.api.failing = no_annotation
    for _ in range(3):
        w.reconcile()
        w.tick()
    w.api.failing = lambda *_: None
    w.run(60)
    assert ignored(w) == []
    assert reasons(w).count("LearnerReadmitted") == 1


def test_the_wrong_index_is_told_once_with_the_right_one() -> None:
    w = given_up()
    w.annotate(readmit="us-west/old/2")
    w.api.failing = no_annotation
    w.run(30)
    assert ignored(w) == [], "the annotation stays for a while"
    w.api.failing = lambda *_: None
    w.run(30)
    assert ignored(w) == [("Warning", NOT_OUT.format("us-west/old/2 is", f"{GIVEN_UP} is"))]
    assert "diloco.dev/readmit" not in w.job()["metadata"]["annotations"]
    assert gated(w) == {MIDDLE}
    assert "LearnerReadmitted" not in reasons(w)


def test_a_giving_up_that_the_syncer_forgot_is_told_as_such() -> None:
    w = given_up()
    del w.pods.troubles[MIDDLE]
    (syncer,) = w.home.pods_of("syncer", "demo")
    w.pods.pods[syncer]["status"] = crashed(137, "killed")
    w.pods.delete(syncer)
    w.tick()
    w.syncers["demo"].given_up = set()
    w.run(90)
    assert gated(w) == set()
    assert GIVEN_UP in w.syncers["demo"].joined
    (told,) = [event for event in w.api.events if event["reason"] == "LearnerReadmitted"]
    assert told["note"].startswith(f"{GIVEN_UP} may join again: the syncer was started again, from a checkpoint")


def test_while_the_manifest_is_refused_an_order_says_that_it_waits() -> None:
    w = given_up()
    del w.pods.troubles[MIDDLE]
    w.annotate(readmit=GIVEN_UP)
    w.change(sync={"quorum": 50})
    w.run(30)
    assert w.condition("Degraded")["reason"] == "InvalidSpec"
    assert "cannot be let back in while the manifest is refused" in w.condition("Degraded")["message"]
    w.change(sync={"quorum": 1})
    w.run(60)
    assert gated(w) == set()
    assert reasons(w).count("LearnerReadmitted") == 1
