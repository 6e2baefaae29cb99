"""Pod settings that Kubernetes would refuse or silently drop are refused first, with the field's whole path."""

import pytest

from diloco.spec import SpecError
from diloco.spec.kube import types
from diloco.spec.kube.rules import RULES
from diloco.spec.reading.load import job_from
from tests.support.bad_manifests import LEARNERS_POOL, PODS, Wrong
from tests.support.job_manifests import changed


@pytest.mark.parametrize("wrong", [pytest.param(one, id=f"{one.place} {one.says[:24]}") for one in PODS])
def test_a_wrong_setting_of_a_pod_is_refused_in_one_line(wrong: Wrong) -> None:
    with pytest.raises(SpecError) as caught:
        job_from(changed({f"spec.regions.0.pools.0.{field}": value for field, value in wrong.pool.items()}))
    assert str(caught.value) == f"{LEARNERS_POOL}.{wrong.place}: {wrong.says}"


def test_the_syncers_pod_is_checked_as_the_learners_are() -> None:
    affinity = "spec.syncer.podTemplate.spec.affinity"
    with pytest.raises(SpecError) as caught:
        job_from(changed({f"{affinity}.nodeAffinty": {}}))
    assert str(caught.value) == f"{affinity}.nodeAffinty: is not a field here; did you mean nodeAffinity?"


def test_what_is_checked_further_is_published() -> None:
    published = {
        f"{name}.{field.partition('=')[0].rstrip('!')}"
        for name, fields in types._FIELDS.items()
        for field in fields.split()
    }
    assert published >= {*types._REFINED, *types._ALSO_REQUIRED}
    assert types._FIELDS.keys() >= RULES.keys()
