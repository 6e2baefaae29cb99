"""Which pods have the template of their set, and what the base of a template is called."""

from typing import Any

import pytest

from diloco_operator.decide.observed import Object
from diloco_operator.decide.revisions import is_outdated, revision_of_base
from diloco_operator.manifests.avoidance import avoiding
from diloco_operator.manifests.holds import held_back

HASH = "controller-revision-hash"


def desired(image: str = "i:1", digest: str | None = "d1") -> Object:
    template = {"metadata": {"labels": {"app": "l"}}, "spec": {"containers": [{"name": "c", "image": image}]}}
    annotations = {} if digest is None else {"diloco.dev/template": digest}
    return {"metadata": {"name": "s", "annotations": annotations}, "spec": {"template": template}}


def live(item: Object | None = None, *, seen: bool = True, update: Any = "s-new") -> Object:
    item = item or desired()
    status = {"observedGeneration": 3 if seen else 2, "updateRevision": update}
    return {**item, "metadata": {**item["metadata"], "generation": 3}, "status": status}


def pod(made_from: str = "s-new", base: str = "") -> Object:
    return {"metadata": {"labels": {HASH: made_from} | ({"diloco.dev/revision": base} if base else {})}}


def test_the_base_of_a_template_that_was_seen_is_the_update_revision() -> None:
    assert revision_of_base(desired(), live()) == "s-new"
    assert revision_of_base(desired(digest=None), live(desired(digest=None))) == "s-new"


def test_of_a_template_that_avoids_nodes_it_is_what_its_label_says() -> None:
    there = live(avoiding(desired(), ("n",), "s-base"), seen=False)
    assert revision_of_base(desired(), there) == "s-base"
    assert revision_of_base(desired("i:2", "d2"), there) == "", "the base changes first"


@pytest.mark.parametrize(
    "there",
    [
        None,
        live(seen=False),
        live(held_back(desired(), gated=True)),
        live(desired("edited")),
        live(desired(digest="d0")),
        *(live(update=value) for value in (None, "", 7, "a b", "x" * 64, ["s"])),
    ],
    ids=["no set", "not seen", "gated", "edited", "another", "none", "empty", "number", "space", "long", "list"],
)
def test_otherwise_it_is_not_known(there: Object | None) -> None:
    assert revision_of_base(desired(), there) == ""


def test_pods_made_before_and_after_are_up_to_date() -> None:
    avoids = live(avoiding(desired(), ("n",), "s-base"), update="s-avoids")
    assert not is_outdated(pod("s-base"), avoids)
    assert not is_outdated(pod("s-avoids", base="s-base"), avoids)
    assert is_outdated(pod("s-older"), avoids)
    assert is_outdated(pod("s-avoids", base="s-older"), avoids)
    again = live(update="s-base")
    assert not is_outdated(pod("s-base"), again)
    assert not is_outdated(pod("s-avoids", base="s-base"), again)
    assert is_outdated(pod("s-avoids", base="s-older"), again)
    assert not is_outdated({"metadata": {}}, again), "not known"
