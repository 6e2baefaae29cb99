import re

import pytest

from diloco.spec.base import HOST_NAME
from diloco.spec.names.syncer_name import JobName, job_of_syncer, syncer_name


def test_each_job_of_a_cluster_has_a_name_of_its_own_that_leads_back_to_it() -> None:
    jobs = [JobName("a", "b"), JobName("b", "a"), JobName("a-b", "c"), JobName("1", "2")]
    assert [job_of_syncer(syncer_name(*job)) for job in jobs] == jobs
    assert len({syncer_name(*job) for job in jobs}) == len(jobs)


def test_the_longest_job_has_a_name_that_dns_and_tls_accept() -> None:
    name = syncer_name("a" * 63, "b" * 63)
    assert len(name) <= 253
    assert re.fullmatch(HOST_NAME, name)


@pytest.mark.parametrize(
    "name", ["", "example.com", "syncer.diloco.internal", "a.syncer.diloco.internal", ".b.syncer.diloco.internal"]
)
def test_other_names_are_no_syncers(name: str) -> None:
    assert job_of_syncer(name) is None
    assert job_of_syncer(f"a.b.c{name and '.' + name}") is None
