"""Accidents and changes while a job trains on a real cluster: the other learners train on.

The tests share one job whose budget no test reaches; each leaves it as it found it, and the last one ends it. There is
no intervention after a fault. Steps come from the learners' metrics, membership from the syncer, restarts from
Kubernetes.
"""

from functools import partial

import pytest

from diloco.core.account.time_class import TimeClass
from diloco.spec.status.job import LearnerRestarts
from diloco.spec.status.syncer import SyncerStatus
from testbed.kind.clusters import Cluster
from testbed.kind.waiting import wait_until
from tests.support.cluster_jobs import (
    CHECKPOINT_STEPS,
    TOKENS_PER_STEP,
    ClusterJob,
    bystanders,
    condition,
    holds,
    identities,
    is_degraded,
    of,
    pool,
)
from tests.support.cluster_nodes import (
    BOTH,
    SPOT,
    VICTIM,
    WITNESS,
    Nodes,
    kill_container,
    lost_node,
    on,
    witness_and_victim,
)

pytestmark = pytest.mark.timeout(900)

NEWCOMER = "west/spot/1"
PATIENT = [
    {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 900}
    for taint in ("unreachable", "not-ready")
]
"""The victim's pod stays on a node that is away for a while."""


@pytest.fixture(scope="module")
def shared_job(cluster: Cluster, namespace: str, nodes: Nodes) -> ClusterJob:
    """The victim is alone on the node that can be lost."""
    spot = pool("spot", **on(nodes.lost))
    spot["podTemplate"]["spec"]["tolerations"] = PATIENT
    return witness_and_victim(cluster, namespace, nodes, "faults", spot)


@pytest.fixture
def job(shared_job: ClusterJob) -> ClusterJob:
    """The job, with both of its learners training."""
    shared_job.all_train(*BOTH)
    return shared_job


def trains_without(job: ClusterJob, witness: str, victim: str) -> SyncerStatus:
    """Wait until the witness makes steps while the victim makes none; returns the syncer's status after them."""
    missed = job.misses(victim)
    after = job.train_on(witness, since=missed)
    # On a busy machine the victim may be back by now. Then the witness's account shows that it did not wait.
    assert of(after, victim).state != "Training" or waited_seconds(after, witness) - waited_seconds(missed, witness) < (
        0.5 * (after.elapsed_seconds - missed.elapsed_seconds)
    )
    return after


def waited_seconds(account: SyncerStatus, learner: str) -> float:
    return of(account, learner).time_seconds.get(TimeClass.WAITING, 0.0)


def began_after(epoch: int, account: SyncerStatus) -> bool:
    return account.epoch > epoch


def nothing_twice(account: SyncerStatus) -> None:
    """Check that every step of a learner took sequences of its own, however often it was interrupted."""
    assert [one.tokens for one in account.learners] == [TOKENS_PER_STEP * one.steps for one in account.learners]


def comes_back(job: ClusterJob, before: SyncerStatus, learner: str, *, counted: bool = True) -> SyncerStatus:
    """Wait until a learner that was restarted trains again; it has gone on where it was.

    ``counted``: as a failure, which it is unless it was asked to stop.
    """
    old = of(before, learner)
    # Its position in the data follows its steps: each takes the next sequences that it was dealt.
    after = job.rejoins(learner, before)
    new = of(after, learner)
    assert new.restarts == old.restarts + counted
    nothing_twice(after)
    job.goes_on(learner, old.steps)
    if counted:
        shown = LearnerRestarts(learner=learner, count=new.restarts)
        job.wait_for(lambda status: shown in status.restarts, "the restart is counted")
    return after


def untouched(before: SyncerStatus, after: SyncerStatus, learner: str) -> None:
    """Check that the learner went on in the same session."""
    assert of(after, learner).incarnation == of(before, learner).incarnation
    assert of(after, learner).restarts == of(before, learner).restarts


def test_a_job_that_trains_says_so(job: ClusterJob) -> None:
    status = job.wait_for(
        lambda status: (
            (status.learners.summary, status.learners.ready) == ("2/2", 2)
            and holds(status, "Ready", "Training")
            and not is_degraded(status)
            and status.progress is not None
            and status.progress.step > 0
        ),
        "both learners train and have merged",
    )
    assert holds(status, "Progressing", "Training")
    assert [(region.name, region.training, region.pools[0].ready) for region in status.regions] == [
        ("east", 1, 1),
        ("west", 1, 1),
    ]
    assert status.syncer is not None
    assert status.syncer.endpoint == f"faults-syncer.{job.namespace}.svc:29400"
    row = job.row()
    assert list(row) == ["NAME", "PHASE", "READY", "PROGRESS", "LEARNERS", "LOSS", "AGE"]
    assert (row["PHASE"], row["READY"], row["LEARNERS"]) == ("Training", "True", "2/2")


def test_a_deleted_learner_pod_comes_back_to_its_place_and_nobody_waits(job: ClusterJob) -> None:
    before, others, pod = job.all_train(*BOTH), bystanders(job, WITNESS), job.pod(VICTIM)
    job.kubectl("delete", "pod", pod.name, "--wait=false")
    trains_without(job, WITNESS, VICTIM)
    untouched(before, comes_back(job, before, VICTIM, counted=False), WITNESS)
    assert bystanders(job, WITNESS) == others
    new = job.pod(VICTIM)
    assert new.uid != pod.uid
    begun = [line for line in job.log(new.name) if line.startswith("loaded the model")]
    assert [line.endswith("data position 0") for line in begun] == [False], begun


def test_a_killed_container_starts_again_in_its_pod_and_nobody_waits(job: ClusterJob) -> None:
    # Long enough for a checkpoint of its own.
    job.goes_on(VICTIM, job.steps(VICTIM) + 2 * CHECKPOINT_STEPS)
    before, others, pod = job.all_train(*BOTH), bystanders(job, WITNESS), job.pod(VICTIM)
    kill_container(pod)
    trains_without(job, WITNESS, VICTIM)
    untouched(before, comes_back(job, before, VICTIM), WITNESS)
    assert bystanders(job, WITNESS) == others
    again = job.pod(VICTIM)
    assert (again.uid, again.restarts) == (pod.uid, pod.restarts + 1)
    # Its checkpoint outlives the container.
    assert any("continues from its own checkpoint" in line for line in job.log(again.name))


def test_a_new_syncer_pod_resumes_from_its_volume_while_learners_train(job: ClusterJob) -> None:
    before, learners = job.all_train(*BOTH), identities(map(job.pod, BOTH))
    job.kubectl("delete", "pod", job.syncer().name)
    for name in BOTH:
        job.goes_on(name)
    after = job.wait_for_account(lambda account: account.epoch > before.epoch, "a new syncer serves")
    assert after.epoch == before.epoch + 1
    assert after.syncer_step >= before.syncer_step
    assert after.merged_tokens >= before.merged_tokens
    assert any("continues from checkpoint" in line for line in job.log(job.syncer().name))
    both = job.all_train(*BOTH)
    merged = job.wait_for_account(lambda account: account.syncer_step > both.syncer_step, "merges go on")
    assert merged.epoch == after.epoch
    assert identities(map(job.pod, BOTH)) == learners
    assert [one.restarts for one in merged.learners] == [one.restarts for one in before.learners]
    job.wait_for(lambda status: status.syncer is not None and status.syncer.epoch == after.epoch, "the status has it")


def test_a_killed_syncer_goes_on_behind_its_service(job: ClusterJob) -> None:
    before = job.all_train(*BOTH)
    kill_container(job.syncer())
    after = job.wait_for_account(partial(began_after, before.epoch), "the syncer serves again")
    assert after.epoch == before.epoch + 1
    both = job.all_train(*BOTH)
    job.wait_for_account(lambda account: account.syncer_step > both.syncer_step, "merges go on")


def test_a_suspended_job_has_no_pods_and_goes_on_from_where_it_was(job: ClusterJob) -> None:
    before = job.all_train(*BOTH)
    job.patch(suspend=True)
    job.kubectl_wait("condition=Suspended")
    assert not job.pods()
    status = job.status()
    assert (status.phase, status.learners.summary) == ("Suspended", "0/0")
    job.tells("Suspending", "Suspended")
    assert status.progress is not None
    assert status.progress.step >= before.syncer_step
    job.patch(suspend=False)
    after = job.wait_for_account(lambda account: account.epoch > before.epoch, "the syncer is back")
    assert after.syncer_step >= status.progress.step
    assert after.merged_tokens >= status.progress.tokens
    again = job.all_train(*BOTH)
    for old in before.learners:
        new = of(again, old.id)
        assert new.steps >= old.steps
        assert new.restarts == old.restarts  # it was asked to stop
        job.goes_on(old.id, old.steps)
    job.wait_for(lambda status: status.phase == "Training", "it trains again")
    assert condition(job.status(), "Suspended").reason == "Resumed"


def test_a_pool_grows_and_shrinks_while_the_others_train_on(job: ClusterJob) -> None:
    before, others = job.all_train(*BOTH), bystanders(job, *BOTH)
    job.set_pool(*SPOT, learners=2)
    grown = job.all_train(*BOTH, NEWCOMER)
    status = job.wait_for(lambda status: status.learners.summary == "3/3", "three learners train")
    assert (status.regions[1].desired, status.regions[1].training, status.regions[0].training) == (2, 2, 1)
    job.merges(NEWCOMER, since=grown)
    job.set_pool(*SPOT, learners=1)
    wait_until(lambda: len(job.pods()) == 3, "its pod goes")
    after = job.all_train(*BOTH)
    status = job.wait_for(lambda status: status.learners.summary == "2/2", "two learners train")
    assert (status.regions[1].desired, status.regions[1].training) == (1, 1)
    said = [line for line in job.log(job.syncer().name) if line.startswith(("Admit", "LearnerLeft"))]
    # After its goodbye it sends nothing more.
    assert [line for line in said if f" {NEWCOMER}" in line][-1] == f"LearnerLeft {NEWCOMER}: left"
    for name in BOTH:
        untouched(before, grown, name)
        untouched(before, after, name)
    assert bystanders(job, *BOTH) == others
    assert after.merged_tokens > grown.merged_tokens


def test_a_learner_left_out_by_index_frees_its_node_and_nobody_waits(job: ClusterJob) -> None:
    job.set_pool(*SPOT, learners=2)
    grown = job.all_train(*BOTH, NEWCOMER)
    others = bystanders(job, WITNESS, NEWCOMER)
    job.set_pool(*SPOT, excludedIndices=[0])
    status = job.wait_for(lambda status: status.regions[1].pools[0].held == 1, "its pod is held back")
    assert (status.regions[1].desired, status.regions[0].desired) == (1, 1)
    assert job.pod(VICTIM).node == ""
    job.goes_on(NEWCOMER)
    assert bystanders(job, WITNESS, NEWCOMER) == others
    job.set_pool(*SPOT, excludedIndices=[])
    after = job.all_train(*BOTH, NEWCOMER)
    assert bystanders(job, WITNESS, NEWCOMER) == others
    assert "held" not in job.status().regions[1].pools[0].model_dump(exclude_none=True)
    untouched(grown, after, WITNESS)
    job.set_pool(*SPOT, learners=1)
    wait_until(lambda: len(job.pods()) == 3, "the newcomer goes")


def test_a_lost_node_costs_its_learners_and_counts_nothing_twice(
    job: ClusterJob, cluster: Cluster, nodes: Nodes
) -> None:
    before, others = job.all_train(*BOTH), bystanders(job, *BOTH)
    with lost_node(cluster, nodes.lost):
        alone = trains_without(job, WITNESS, VICTIM)
        gone = job.becomes("Degraded", "LearnersMissing")
        assert condition(gone, "Degraded").message.startswith("1 of 1 learners of west/spot ")
        assert gone.learners.summary == "1/2"
        assert holds(gone, "Ready")
        merging = job.wait_for_account(lambda account: account.merged_tokens > alone.merged_tokens, "it merges alone")
    after = job.all_train(*BOTH)
    assert of(after, VICTIM).incarnation > of(before, VICTIM).incarnation
    assert of(after, VICTIM).restarts == of(before, VICTIM).restarts  # the same process came back
    job.goes_on(VICTIM, of(before, VICTIM).steps)
    merged = job.merges(VICTIM, since=merging)
    nothing_twice(merged)
    untouched(before, merged, WITNESS)
    assert bystanders(job, *BOTH) == others
    job.recovers()


def test_a_job_that_passes_its_deadline_fails_and_has_no_pods_left(job: ClusterJob) -> None:
    job.patch(activeDeadlineSeconds=1)
    job.kubectl_wait("condition=Failed")
    status = job.status()
    assert (status.phase, status.reason) == ("Failed", "DeadlineExceeded")
    assert condition(status, "Failed").message == "not complete after spec.activeDeadlineSeconds (1 s)"
    job.tells("DeadlineExceeded")
    assert status.model is None
    assert status.completion_time is not None
    wait_until(lambda: not job.pods(), "the pods of a failed job go")
