"""What pods may fill of a node's disk, and what they request of it, and how long they may take to end, by what a
learner really writes."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from diloco.learner import checkpoint_writer
from diloco.learner.checkpoint import CheckpointIdentity, CheckpointStore, LearnerCheckpoint
from diloco.learner.data.opening import open_data
from diloco.learner.exchange.residuals import Residual
from diloco.learner.training.trainer import InnerTrainer
from diloco.model.build import build_model
from diloco.model.fragments import layout_of
from diloco.spec import DiLoCoJob
from diloco.spec.base import bytes_in
from diloco.syncer.disk import checkpointer
from tests.support.made_objects import containers, live, made, small_job, templates

SET, DEPLOYMENT = "StatefulSet/small--east-a", "Deployment/small-syncer"
DOCUMENTS = {"documents": {"path": "/corpus"}}
BUILTIN = {"builtin": {"preset": "pico", "vocabularySize": 300}}
SPARE_BYTES = 66 << 20
"""What is left free for a file system's own blocks, and a rounding."""


def job(pool: dict[str, Any] | None = None, **spec: Any) -> DiLoCoJob:
    return small_job({"name": "east", "pools": [{"name": "a", **(pool or {})}]}, **spec)


def limits(pod: dict[str, Any]) -> dict[str, Any]:
    """The limits of a pod's empty directories."""
    found = {volume["name"]: volume["emptyDir"] for volume in pod["spec"]["volumes"] if "emptyDir" in volume}
    return {name: directory.get("sizeLimit") for name, directory in found.items()}


def requested(pod: dict[str, Any]) -> Any:
    (container,) = containers(pod)
    return container["resources"].get("requests", {}).get("ephemeral-storage")


def most_on_disk(one: DiLoCoJob, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Bytes in the folder of a learner of this job that saves often, at the worst moment."""
    module = build_model(one.spec)
    layout = layout_of(module, one.spec.sync.fragments)
    trainer = InnerTrainer(one.spec, module, layout, open_data(one.spec, "east/a/0"), torch.device("cpu"))
    trainer.step(0.0)
    kept = one.spec.sync.keeps_residuals
    residuals = {fragment.index: Residual(0, torch.zeros(fragment.numel)) for fragment in layout.fragments if kept}
    sizes = []
    monkeypatch.setattr(os, "fsync", lambda _: sizes.append(sum(p.stat().st_size for p in folder.rglob("*"))))
    store = CheckpointStore(folder, CheckpointIdentity("small", "east/a/0", layout.digest, "AdamW"))
    for _ in range(4):
        store.save(LearnerCheckpoint(trainer.state(), residuals))
    return max(sizes)


@pytest.mark.parametrize("compression", ["BF16", "Int4"])
def test_a_learners_checkpoints_fit_into_the_limit_and_little_is_spare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str
) -> None:
    one = job(model={"builtin": {"preset": "micro"}}, sync={"compression": compression})
    pod = templates(made(one))[SET]
    limit = bytes_in(limits(pod)["state"])
    assert 0 <= limit - most_on_disk(one, tmp_path, monkeypatch) < SPARE_BYTES
    assert bytes_in(requested(pod)) > limit


@pytest.mark.parametrize(
    ("pool", "spec", "limited"),
    [
        ({"storage": {}}, {}, {"tmp": "2048Mi"}),
        ({}, {"model": {"entrypoint": "mine:make"}}, {"state": None, "tmp": None}),
        ({}, {"data": DOCUMENTS, "model": BUILTIN}, {"state": None, "tmp": "2048Mi"}),
        ({}, {"data": {"mixture": [{"weight": 1, **DOCUMENTS}]}, "model": BUILTIN}, {"state": None, "tmp": "2048Mi"}),
        ({}, {"data": {"entrypoint": "mine:data"}, "model": BUILTIN}, {"state": "67Mi", "tmp": None}),
    ],
    ids=["a volume", "a model of unknown size", "tokens of documents", "of a mixture with some", "data by code"],
)
def test_a_learners_directories_are_limited_where_what_they_hold_is_known(
    pool: dict[str, Any], spec: dict[str, Any], limited: dict[str, str | None]
) -> None:
    found = templates(made(job(pool, **spec)))
    assert limits(found[SET]) == limited
    if pool:
        assert requested(found[SET]) == requested(found[DEPLOYMENT]) == "64Mi", "only its output"
    if "entrypoint" in spec.get("model", {}):
        assert limits(found[DEPLOYMENT]) == {"tmp": None}


@pytest.mark.parametrize("field", ["requests", "limits"])
def test_what_the_manifest_says_of_the_disk_replaces_all_of_ours(field: str) -> None:
    given = {"resources": {field: {"ephemeral-storage": "5Gi"}}}
    one = job(given)
    found = templates(made(live(one, syncer=type(one.spec.syncer).model_validate(given))))
    for name, pod in found.items():
        assert set(limits(pod).values()) == {None}, name
        assert requested(pod) == (None if field == "limits" else "5Gi")


@pytest.mark.parametrize(
    ("resources", "disk_seconds"),
    [
        (None, 0.0),
        ({"limits": {"memory": "2Gi"}}, 0.0),
        ({"requests": {"memory": "1Gi"}, "limits": {"memory": "100G"}}, 2000.0),
        ({"requests": {"memory": "100G"}}, 2000.0),
        ({"requests": {"memory": "100E"}}, 86_400.0),
    ],
)
def test_a_pod_may_take_as_long_to_end_as_its_memory_takes_to_write(
    resources: dict[str, Any] | None, disk_seconds: float
) -> None:
    given = {} if resources is None else {"resources": resources}
    one = job({"storage": {}, **given})
    found = templates(made(live(one, syncer=type(one.spec.syncer).model_validate(given))))
    grace = [found[name]["spec"]["terminationGracePeriodSeconds"] for name in (SET, DEPLOYMENT)]
    learner, syncer = max(checkpoint_writer.LEAST_SECONDS, disk_seconds), max(checkpointer.LEAST_SECONDS, disk_seconds)
    assert grace == [learner + 60, syncer + 30]
    probes = [one["livenessProbe"] for pod in found.values() for one in containers(pod)]
    stuck = {one.get("terminationGracePeriodSeconds") for one in probes}
    assert stuck == ({120, 150} if disk_seconds else {None})


def test_a_learner_whose_checkpoints_go_with_its_pod_ends_soon() -> None:
    pod = templates(made(job({"resources": {"limits": {"memory": "100G"}}})))[SET]
    assert pod["spec"]["terminationGracePeriodSeconds"] == 120
