"""Whether a run on this machine or jobs in a cluster are meant: one rule, from argument, flags and program name."""

from pathlib import Path

import pytest

from diloco.cli.live.target import ClusterFlags, ClusterJobs, LocalRun, TargetError, target

NONE = ClusterFlags()
IN_ML = ClusterFlags(namespace="ml")


@pytest.mark.parametrize(
    ("what", "flags", "program", "meant"),
    [
        (None, NONE, "diloco", LocalRun(".")),
        ("out", NONE, "diloco", LocalRun("out")),
        ("./job/mine", NONE, "diloco", LocalRun("./job/mine")),
        ("127.0.0.1:8080", NONE, "diloco", LocalRun("127.0.0.1:8080")),
        ("job/mine", NONE, "diloco", ClusterJobs(NONE, "mine")),
        ("dlj/mine", NONE, "diloco", ClusterJobs(NONE, "mine")),
        ("mine", IN_ML, "diloco", ClusterJobs(IN_ML, "mine")),
        (None, IN_ML, "diloco", ClusterJobs(IN_ML, None)),
        (None, ClusterFlags(all_namespaces=True), "diloco", ClusterJobs(ClusterFlags(all_namespaces=True), None)),
        ("mine", ClusterFlags(context="east"), "diloco", ClusterJobs(ClusterFlags(context="east"), "mine")),
        (None, ClusterFlags(kubeconfig=Path("k")), "diloco", ClusterJobs(ClusterFlags(kubeconfig=Path("k")), None)),
        (None, NONE, "kubectl diloco", ClusterJobs(NONE, None)),
        ("mine", NONE, "kubectl diloco", ClusterJobs(NONE, "mine")),
        ("dilocojobs/mine", NONE, "kubectl diloco", ClusterJobs(NONE, "mine")),
    ],
)
def test_what_is_meant(what: str | None, flags: ClusterFlags, program: str, meant: LocalRun | ClusterJobs) -> None:
    assert target(what, flags, program=program) == meant


@pytest.mark.parametrize(
    ("what", "flags", "told"),
    [
        ("127.0.0.1:8080", NONE, "'127.0.0.1:8080' is not a valid job name"),
        ("../job", NONE, "'../job' is not a valid job name"),
        ("job/", NONE, "'job/' is not a valid job name"),
        ("x" * 64, NONE, "is not a valid job name"),
        ("mine\n", NONE, "is not a valid job name"),
        ("pod/mine", NONE, "'pod/mine' is not a valid job name"),
        (
            "mine",
            ClusterFlags(namespace="../secrets"),
            "--namespace: ../secrets is not a namespace; use a name of lower-case letters",
        ),
        ("mine", ClusterFlags(all_namespaces=True), "--all-namespaces: mine is one job; leave it out"),
    ],
)
def test_what_cannot_be_a_job_is_said(what: str, flags: ClusterFlags, told: str) -> None:
    with pytest.raises(TargetError) as raised:
        target(what, flags, program="kubectl diloco")
    assert told in str(raised.value)
