"""A real cluster with the chart's definition refuses a wrong manifest and names the field.

Nothing of it is stored. Other tests check on an API server alone that ``diloco`` reports the same.
"""

import json
from concurrent.futures import ThreadPoolExecutor

from testbed.kind.chart import Release
from testbed.kind.clusters import Cluster
from testbed.kind.commands import CommandFailedError
from tests.support.bad_manifests import BY_RULE, BY_SCHEMA, BadManifest
from tests.support.job_manifests import GOOD_JOBS

_AT_ONCE = 4


def said(cluster: Cluster, namespace: str, manifest: object) -> str:
    """The error of ``kubectl apply --dry-run=server``; empty: there is none."""
    command = ("apply", "--dry-run=server", "--namespace", namespace, "--filename", "-")
    try:
        cluster.kubectl(*command, stdin=json.dumps(manifest), timeout_seconds=240)
    except CommandFailedError as refusal:
        return refusal.output
    return ""


def test_bad_manifests_are_refused_with_the_field_and_good_ones_accepted(
    cluster: Cluster, chart: Release, namespace: str
) -> None:
    assert chart.namespace != namespace
    bad = BY_SCHEMA + BY_RULE
    assert len(bad) >= 30

    def told(case: BadManifest) -> str:
        return said(cluster, namespace, case.manifest)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        refusals = list(pool.map(told, bad))
        good = dict(
            zip(GOOD_JOBS, pool.map(lambda job: said(cluster, namespace, job), GOOD_JOBS.values()), strict=True)
        )
    wrong = [(case.field, text) for case, text in zip(bad, refusals, strict=True) if not _named(case, text)]
    assert wrong == []
    assert {name: text for name, text in good.items() if text} == {}
    assert cluster.get("dilocojobs", "--namespace", namespace)["items"] == []


def _named(case: BadManifest, text: str) -> bool:
    return case.field in text and case.words in text
