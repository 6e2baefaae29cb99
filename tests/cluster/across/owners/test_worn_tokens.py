"""Home's token has run out while a job trained: renewed in time nobody notices, otherwise the status says so.

The tokens are those of `test_aged_tokens`. API servers take a token for another minute after its end, which the tests
in between use.
"""

import pytest

from testbed.kind.waiting import wait_until
from tests.support.across import WEST, give_secret, has_reason
from tests.support.aged_tokens import RunningOut
from tests.support.cluster_jobs import identities

pytestmark = pytest.mark.timeout(600)


def test_a_token_that_could_not_be_renewed_is_told_after_its_end(running_out: RunningOut) -> None:
    told = running_out.told
    has_reason(told.job, "west", "ClusterUnauthorized")
    give_secret(told.job.cluster, told.job.namespace, told.far.secret())
    has_reason(told.job, "west", None)


def test_a_renewed_token_goes_on_after_the_end_of_the_first(running_out: RunningOut) -> None:
    renewed = running_out.renewed
    far, job = renewed.far, renewed.job
    assert far.takes(far.secret())
    wait_until(lambda: not far.takes(renewed.secret), "the first is worthless")
    has_reason(job, "west", None)
    job.train_on(WEST)
    # Written with the new one.
    there = far.job(job.name)
    there.kubectl("delete", "networkpolicy", "--selector", f"diloco.dev/job={job.name}")
    wait_until(lambda: there.items("networkpolicies"), "it is made again")
    assert identities(there.pods()) == renewed.pods
