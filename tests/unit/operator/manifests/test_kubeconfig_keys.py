"""Keys of Secrets with kubeconfigs: each must give the Secret with a renewed token a name of its own."""

import itertools
import re

import pytest

from diloco.spec import DiLoCoJob
from diloco.spec.placement import RemoteCluster, SecretKey
from diloco_operator.clusters.home import ClusterKey, token_secret
from diloco_operator.manifests import InvalidSpecError
from diloco_operator.manifests.kubeconfig_keys import LONGEST_KEY, problems
from tests.support.made_objects import live, made, with_pool

SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""As an API server wants the name of a Secret (RFC 1123)."""
KEYS = (
    *("kubeconfig", "Kubeconfig", "second.yaml", "second_yaml", "second-yaml", "a.b-c_d"),
    *("-", ".", "..", "a..b", "_a", "a_", "a.-b", "k\u00fcbe", "two words", "a/b", "k" * LONGEST_KEY, "k" * 200),
)
LONGEST_NAME = "s" * 63


def job(*secrets: tuple[str, str] | None) -> DiLoCoJob:
    """A job with a region for each of these Secrets and keys; None: at home."""
    plain = with_pool({})
    regions = [
        plain.spec.regions[0].model_copy(
            update={
                "name": f"r{index}",
                "cluster": None if one is None else RemoteCluster(kubeconfig_secret=SecretKey(name=one[0], key=one[1])),
            }
        )
        for index, one in enumerate(secrets)
    ]
    return live(plain, regions=tuple(regions))


def said(*secrets: tuple[str, str] | None) -> list[str]:
    return [str(problem) for problem in problems(job(*secrets).spec)]


USABLE = [key for key in KEYS if not said(("west", key))]


@pytest.mark.parametrize("key", KEYS)
def test_a_key_is_refused_if_no_secret_could_keep_its_token(key: str) -> None:
    name = token_secret(ClusterKey("team", LONGEST_NAME, key))
    usable = len(name) <= 253 and SUBDOMAIN.fullmatch(name) is not None
    assert (said((LONGEST_NAME, key)) == []) is usable


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(USABLE, 2)))
def test_two_keys_are_refused_if_one_secret_would_keep_both_tokens(one: str, other: str) -> None:
    same = len({token_secret(ClusterKey("team", "west", key)) for key in (one, other)}) == 1
    assert bool(said(("west", one), ("west", other))) is same
    assert said(("west", one), ("east", other), None) == []


def test_the_line_names_both_places() -> None:
    (line,) = said(("west", "kubeconfig"), None, ("west", "kubeconfig"), ("west", "Kubeconfig"))
    assert line == (
        "spec.regions[3].cluster.kubeconfigSecret.key: Kubeconfig differs from kubeconfig of "
        "spec.regions[0].cluster.kubeconfigSecret only in case, hyphens or underscores; "
        "use another key or another Secret"
    )


def test_the_operator_makes_nothing_of_such_a_job() -> None:
    with pytest.raises(InvalidSpecError, match=r"spec\.regions\[1\]\.cluster\.kubeconfigSecret\.key: "):
        made(job(None, ("west", "not this")))
