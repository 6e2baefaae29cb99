"""Operators that come after each other or run beside each other, against a real API server."""

from pathlib import Path
from typing import Any

import pytest

from diloco import __version__
from diloco.runtime.process.exits import EXIT_LEASE_LOST, EXIT_OK
from diloco_operator.api_server.kinds import JOB
from testbed.kind.waiting import wait_until
from testbed.operator_process import OperatorProcess
from tests.support.operator_scene import (
    CHILDREN_OF_TWO_POOLS,
    EVERYTHING,
    Cluster,
    Start,
    at_rest,
    manifest,
    reconciles_again,
)

LATER = """
import sys
from diloco_operator.main import main
from diloco_operator.manifests import common
common.JOB_ARGUMENTS += ("--later",)
common.OUR_MOUNTS[common.JOB_VOLUME] = "/etc/later"
sys.exit(main())
"""
"""An operator of a later version, whose templates have one more argument and another path."""
MEMORY = {"limits": {"memory": "2Gi"}}


@pytest.mark.core
def test_a_second_operator_stands_by_and_takes_over_without_changes(cluster: Cluster, start: Start) -> None:
    with start() as first:
        versions = at_rest(cluster, first)
        with start() as second:
            wait_until(lambda: second.stands_by, "the second stands by")
            assert second.get("/readyz")[1].startswith(
                f"standing by: lease {cluster.namespace}/diloco-operator is held by"
            )
            assert second.metric("lease_held") == 0
            assert second.writes == 0
            assert first.stop() == EXIT_OK
            wait_until(lambda: second.works, "the second works")
            # A new process applies every object once, which changes nothing, and then writes no more.
            wait_until(lambda: second.reconciles >= 3, "it has looked at the job")
            writes = second.writes
            assert writes <= len(versions)
            reconciles_again(second)
            assert second.writes == writes
            assert cluster.versions() == versions


def containers(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """Of the syncer and of each pool."""
    items = {name: one.get("spec", {}) for name, one in cluster.children().items()}
    return {name: one["template"]["spec"]["containers"][0] for name, one in items.items() if "template" in one}


def test_a_later_operator_gives_an_old_image_memory_and_no_new_argument(
    cluster: Cluster, start: Start, tmp_path: Path
) -> None:
    with start() as first:
        at_rest(cluster, first)
        assert first.stop() == EXIT_OK
    before = containers(cluster)
    flags = (f"--{one}={cluster.namespace}" for one in ("operator-namespace", "namespaces"))
    kubeconfig, log = cluster.server.kubeconfig, tmp_path / "later.log"
    with OperatorProcess(kubeconfig, log, *flags, "--poll-seconds=0.5", program=("-c", LATER)) as later:
        wait_until(lambda: later.works, "it works")
        reconciles_again(later)
        assert containers(cluster) == before
        changed = manifest("two", syncer={"resources": MEMORY})
        changed["spec"]["regions"][0]["pools"][0]["resources"] = MEMORY
        cluster.apply(changed)
        names = {name for name in before if "syncer" in name or "us-east" in name}

        def with_memory() -> set[str]:
            return {name for name, one in containers(cluster).items() if one["resources"].get("limits")}

        wait_until(lambda: with_memory() == names, "they have the memory")
        after = containers(cluster)
        assert {name for name in after if after[name] != before[name]} == names
        for old, new in ((before[name], after[name]) for name in names):
            assert {key for key in new if new[key] != old[key]} == {"resources", "volumeMounts"}
            assert [mount for mount in old["volumeMounts"] if mount not in new["volumeMounts"]] == []
        reconciles_again(later)
        versions = cluster.versions()
        reconciles_again(later)
        assert cluster.versions() == versions
        cluster.apply(manifest("another"))
        cluster.settled("another", 2 * CHILDREN_OF_TWO_POOLS)
        assert all("--later" in one["args"] for name, one in containers(cluster).items() if "another" in name)


def test_an_operator_that_stands_by_ends_when_it_is_asked_to(start: Start) -> None:
    with start() as first, start() as second:
        wait_until(lambda: {first.works, second.works} == {True, False}, "one works, the other stands by")
        waiting = second if first.works else first
        wait_until(lambda: waiting.stands_by, "it stands by")
        assert waiting.stop() == EXIT_OK
        assert first.works or second.works


@pytest.fixture
def other(cluster: Cluster) -> str:
    """The namespace of an operator that would write other NetworkPolicies: only it may read a syncer's figures."""
    name = f"{cluster.namespace}-other"
    cluster.server.kubectl("create", "namespace", name)
    return f"--operator-namespace={name}"


def test_one_of_two_operators_acts_in_a_namespace_the_other_says_who(
    cluster: Cluster, start: Start, other: str
) -> None:
    lease = f"lease {cluster.namespace}/diloco-jobs is held by {cluster.namespace}"
    with start() as first, start(None, other) as second:
        wait_until(lambda: first.works and second.works, "both work")
        cluster.has_job("two")

        def stands_back(operator: OperatorProcess) -> bool:
            return f"not acting in {cluster.namespace}: {lease}" in operator.get("/readyz")[1]

        wait_until(lambda: {stands_back(first), stands_back(second)} == {True, False}, "one of them stands back")
        acting, waiting = (second, first) if stands_back(first) else (first, second)
        reconciles_again(acting)
        writes, versions = acting.writes, cluster.versions()
        reconciles_again(acting, times=10)
        assert acting.writes == writes
        assert waiting.writes == 0
        assert cluster.versions() == versions
        assert lease in waiting.log
        assert waiting.works


def test_an_operator_that_is_uninstalled_frees_its_namespaces(cluster: Cluster, start: Start, other: str) -> None:
    user = f"operator-of-{cluster.namespace}"
    with start(cluster.grant(user, EVERYTHING), f"--binding={user}"):
        cluster.has_job("two")
        assert cluster.status("two")["operator"] == f"{cluster.namespace}/diloco-operator {__version__}"
        owner = cluster.kubectl("get", "lease", "diloco-jobs", "--output=jsonpath={.metadata.ownerReferences[*].uid}")
        assert owner == cluster.kubectl("get", "rolebinding", user, "--output=jsonpath={.metadata.uid}")
        with start(None, other) as second:
            wait_until(lambda: "not acting in" in second.get("/readyz")[1], "the second stands back")
            cluster.kubectl("delete", "rolebinding", user)
            # No controller collects garbage here.
            cluster.kubectl("delete", "lease", "diloco-jobs")
            next_one = f"{cluster.namespace}-other/diloco-operator {__version__}"
            wait_until(lambda: cluster.status("two")["operator"] == next_one, "the second acts, and says so")


def test_a_namespace_that_an_operator_excludes_is_left_to_another(cluster: Cluster, start: Start, other: str) -> None:
    with start(None, other, f"--exclude-namespaces={cluster.namespace}") as excluding:
        cluster.apply(manifest("two"))
        wait_until(lambda: excluding.works, "it works")
        with start() as acting:
            cluster.settled("two")
            assert (excluding.metric("jobs"), acting.metric("jobs")) == (0, 1)
            assert excluding.writes == 0


def test_an_operator_that_loses_its_lease_ends_at_once_and_writes_no_more(cluster: Cluster, start: Start) -> None:
    with start() as operator:
        wait_until(lambda: operator.works, "it works")
        patch = '{"spec": {"holderIdentity": "another"}}'
        cluster.kubectl("patch", "lease", "diloco-operator", "--type=merge", f"--patch={patch}")
        assert operator.wait() == EXIT_LEASE_LOST
        assert "held by another" in operator.log


def test_a_job_of_another_controller_is_left_alone(cluster: Cluster, start: Start) -> None:
    cluster.apply(manifest("theirs", managedBy="example.com/other"))
    cluster.set_status(JOB, "theirs", phase="Running")
    before = cluster.get("dilocojob", "theirs")
    with start() as operator:
        at_rest(cluster, operator)
        changed = manifest("theirs", managedBy="example.com/other", suspend=True)
        cluster.apply(changed)
        reconciles_again(operator)
        assert {one["metadata"]["labels"]["diloco.dev/job"] for one in cluster.children().values()} == {"two"}
        after = cluster.get("dilocojob", "theirs")
        assert after["status"] == before["status"]
        assert after["metadata"].get("finalizers") is None
        assert operator.metric("jobs") == 1
