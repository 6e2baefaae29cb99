"""Home's token runs out soon: it is renewed where the Role allows that, and told where it does not.

`test_worn_tokens` has what becomes of them.
"""

import pytest

from testbed.kind.waiting import wait_until
from tests.support.across import WEST, has_reason
from tests.support.aged_tokens import RunningOut
from tests.support.cluster_jobs import holds

pytestmark = pytest.mark.timeout(600)


def test_a_token_past_half_of_its_life_is_renewed_and_kept_at_home(running_out: RunningOut) -> None:
    renewed = running_out.renewed
    found = ("get", "secret", renewed.far.name, "--output", r"jsonpath={.data.kubeconfig\.renewed}")
    wait_until(lambda: renewed.job.kubectl(*found), "a new token is kept")
    has_reason(renewed.job, "west", None)
    renewed.job.train_on(WEST)


def test_a_token_that_cannot_be_renewed_is_told_before_its_end(running_out: RunningOut) -> None:
    job = running_out.told.job
    has_reason(job, "west", "CredentialsExpiring", "the operator may not renew it")
    assert holds(job.status(), "Degraded", "CredentialsExpiring")
