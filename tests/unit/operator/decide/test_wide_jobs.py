"""A look at a job costs in proportion to its pools. Counted in calls, as the time depends on the machine."""

import sys
from collections.abc import Callable

import pytest
from cryptography.x509 import Certificate

from diloco.spec import SpecError
from diloco.spec.reading.load import job_from
from diloco_operator.decide.reconcile import needs_pods, reconcile
from diloco_operator.signing import Authority, RandomCertificateMaker
from testbed.virtual_cluster.operator_world import World, job_object
from tests.support.tenants import wide


def calls(work: Callable[[], object]) -> int:
    """How many calls of Python functions it takes."""
    count = 0

    def called(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def world(pools: int) -> World:
    """A job of so many pools, each of which has its objects."""
    made = World(job=job_object(tokens=10**9, regions=wide(1, pools)))
    made.reconcile()
    return made


def look(pools: int) -> int:
    made = world(pools)
    seen = made.observed()

    def once() -> None:
        needs_pods(made.job, seen, made.now, made.options)
        reconcile(made.job, seen, made.now, made.options, RandomCertificateMaker())

    once()
    return calls(once)


def test_a_look_at_twice_the_pools_costs_twice_as_much() -> None:
    few, many = look(24), look(48)
    assert many <= 2.2 * few


def test_a_certificate_is_verified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    verified, real = list[object](), Authority.signed

    def signed(self: Authority, certificate: Certificate) -> bool:
        verified.append(certificate)
        return real(self, certificate)

    monkeypatch.setattr(Authority, "signed", signed)
    made = world(5)
    for _ in range(3):
        made.decide()
    assert len(verified) == 6, "the five pools' and the syncer's"


def test_a_job_of_too_many_pools_is_refused_by_a_sentence() -> None:
    with pytest.raises(SpecError, match=r"spec\.regions: have 272 pools in all; use at most 256"):
        job_from(job_object(regions=wide(17, 16)))
    assert len(job_from(job_object(regions=wide(16, 16))).spec.regions) == 16
