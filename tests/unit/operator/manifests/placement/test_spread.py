from typing import Any

from tests.support.made_objects import learner_pod, made, templates, with_pool

SET, DEPLOYMENT = "StatefulSet/small--east-a", "Deployment/small-syncer"
BARE = learner_pod(with_pool({}))
NODE_AFFINITY: dict[str, Any] = {
    "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}
}


def test_learners_keep_apart_in_the_whole_job_and_away_from_its_syncer() -> None:
    learner, syncer = (templates(made(with_pool({})))[name]["metadata"]["labels"] for name in (SET, DEPLOYMENT))
    terms = BARE["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    of_syncer, by_zone = (one["podAffinityTerm"]["labelSelector"]["matchLabels"] for one in terms)
    (spread,) = BARE["topologySpreadConstraints"]
    assert of_syncer.items() <= syncer.items()
    assert not of_syncer.items() <= learner.items()
    for selector in (by_zone, spread["labelSelector"]["matchLabels"]):
        assert selector.items() <= learner.items()
        assert "diloco.dev/pool" not in selector


def test_other_affinity_of_the_users_stands_beside_ours() -> None:
    found = learner_pod(with_pool({"podTemplate": {"spec": {"affinity": NODE_AFFINITY}}}))
    assert found["affinity"] == {**NODE_AFFINITY, "podAntiAffinity": BARE["affinity"]["podAntiAffinity"]}
