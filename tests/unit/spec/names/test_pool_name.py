"""The fixed name of a pool's learners."""

import re

from diloco.spec.base import HOST_NAME
from diloco.spec.names.pool_name import pool_name
from diloco.spec.names.syncer_name import job_of_syncer


def test_each_pool_has_a_name_of_its_own_which_is_no_syncers() -> None:
    pools = [("a", "b"), ("b", "a"), ("a-b", "c"), ("a", "b-c")]
    assert len({pool_name(*pool) for pool in pools}) == len(pools)
    assert not any(job_of_syncer(pool_name(*pool)) for pool in pools)


def test_the_longest_pool_has_a_name_that_dns_and_tls_accept() -> None:
    name = pool_name("a" * 63, "b" * 63)
    assert len(name) <= 253
    assert re.fullmatch(HOST_NAME, name)
