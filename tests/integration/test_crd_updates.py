"""Which fields of an existing job can be changed: a real API server refuses any other change and names the field."""

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest

from diloco.spec.crd.definition import job_schema
from diloco.spec.crd.immutability import LISTED, MESSAGE, MUTABLE, MUTABLE_SUSPENDED, MUTABLE_UNMADE
from diloco.spec.crd.schema import at
from testbed.api_server.server import ApiServer
from tests.support.job_manifests import EVERY_FIELD, OWN_CODE, TOKEN_FILE, changed

JOBS = "/apis/diloco.dev/v1alpha1/namespaces/default/dilocojobs"
Path = tuple[str | int, ...]
ASLEEP = EVERY_FIELD | {"metadata": {"name": "asleep"}}


@pytest.fixture(scope="module")
def existing(job_server: ApiServer) -> Iterator[dict[str, dict[str, Any]]]:
    """The good jobs as the API server has them, by name."""
    created = {}
    for job in (EVERY_FIELD, OWN_CODE, TOKEN_FILE, ASLEEP):
        running = _with(job, ("spec", "suspend"), value=job is ASLEEP)
        status, created[job["metadata"]["name"]] = job_server.request("POST", JOBS, running)
        assert status == 201
    yield created
    for name in created:
        job_server.request("DELETE", f"{JOBS}/{name}")


def leaves(value: Any, path: Path = ()) -> Iterator[Path]:
    """The paths of a manifest's leaf fields; lists of objects with names are descended into."""
    if isinstance(value, dict) and value and not _is_free(path):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list) and path[-1] in ("regions", "pools"):
        for index, inner in enumerate(value):
            yield from leaves(inner, (*path, index))
    else:
        yield path


def _schema(path: Path) -> dict[str, Any]:
    return at(job_schema(), _pattern(path))


def _named(path: Path) -> str:
    """What an error about another value names: the field, or the outermost block around it that may not change."""
    for end in range(2, len(path)):
        inside = (f"{_pattern(path[:end])}.", f"{_pattern(path[:end])}[]")
        if not any(one.startswith(inside) for one in LISTED):
            return _text(path[:end])
    return _text(path)


def _may_change(path: Path) -> bool:
    """A region or pool of another name is another one, in the place of the first."""
    return _pattern(path) in MUTABLE | MUTABLE_UNMADE or (path[-1] == "name" and isinstance(path[-2], int))


def _is_free(path: Path) -> bool:
    whole = _pattern(path) in LISTED or path[-1:] == ("podTemplate",)
    return bool(path) and (whole or "properties" not in _schema(path))


def _pattern(path: Path) -> str:
    """``spec.regions[].pools[].name``."""
    return "".join("[]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def _text(path: Path) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def _another(value: Any, schema: dict[str, Any]) -> Any:
    """Another value than ``value`` that the field on its own allows."""
    if "enum" in schema:
        return next(choice for choice in schema["enum"] if choice != value)
    if isinstance(value, bool | int | float):
        halved = value / 2 if schema.get("type") == "number" else value - 1
        return not value if isinstance(value, bool) else value + 1 if halved < schema.get("minimum", 0) else halved
    if isinstance(value, str):
        later = {"date-time": "2026-05-01T12:00:00Z"}
        return later.get(schema.get("format", ""), f"1{value}" if value[0].isdecimal() else f"x{value}")
    if isinstance(value, list):
        return value[:-1] or [*value, *({**one, "name": "another"} if isinstance(one, dict) else one for one in value)]
    if "metadata" in schema.get("properties", {}):
        return {"spec": {"schedulerName": "another"}}
    # What else is a mapping without a type is free.
    changes = {"url": f"{value.get('url')}/another"} if "url" in schema.get("properties", {}) else {"added": "x"}
    return {"requests": {"cpu": "3"}} if "requests" in schema.get("properties", {}) else {**value, **changes}


def _with(job: dict[str, Any], path: Path, value: Any) -> dict[str, Any]:
    copy = deepcopy(job)
    node: Any = copy
    for part in path[:-1]:
        node = node[part]
    if value is None:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return copy


def _other(job: dict[str, Any], path: Path) -> dict[str, Any]:
    """The job with another value of the field."""
    node: Any = job
    for part in path:
        node = node[part]
    return _with(job, path, _another(node, _schema(path)))


def _put(server: ApiServer, job: dict[str, Any]) -> tuple[int, str]:
    status, answer = server.request("PUT", f"{JOBS}/{job['metadata']['name']}?dryRun=All", job)
    return status, json.dumps(answer)


def _optional(path: Path) -> bool:
    return path[-1] not in _schema(path[:-1]).get("required", ()) and "default" not in _schema(path)


FIELDS = [
    (job["metadata"]["name"], path)
    for job in (EVERY_FIELD, OWN_CODE, TOKEN_FILE)
    for path in leaves(job["spec"], ("spec",))
]
NEEDED = {"spec.syncer.expose.host", "spec.syncer.expose.port"}
"""Fields that may change, and that type External cannot do without."""
OPTIONAL_FIELDS = [(name, path) for name, path in FIELDS if _optional(path)]


def _identified(fields: list[tuple[str, Path]]) -> list[Any]:
    return [pytest.param(name, path, id=f"{name}-{_text(path)}") for name, path in fields]


def test_every_mutable_field_is_tried() -> None:
    assert {_pattern(path) for _, path in FIELDS} >= LISTED


@pytest.mark.parametrize(("name", "path"), _identified(FIELDS))
def test_a_field_is_refused_another_value_unless_it_is_listed_as_mutable(
    job_server: ApiServer, existing: dict[str, dict[str, Any]], name: str, path: Path
) -> None:
    status, answer = _put(job_server, _other(existing[name], path))
    if _may_change(path):
        # The type of expose changes only together with the fields that another type needs.
        assert status == 200 or (path[-2:] == ("expose", "type") and "once the job exists" not in answer), answer
        return
    assert status == 422, answer
    if _pattern(path) in MUTABLE_SUSPENDED:
        _assert_says_to_suspend(answer, path)
        return
    assert "once the job exists" in answer
    assert f'"{_named(path)}"' in answer


@pytest.mark.parametrize(("name", "path"), _identified(OPTIONAL_FIELDS))
def test_an_optional_field_cannot_be_removed_unless_listed_as_mutable(
    job_server: ApiServer, existing: dict[str, dict[str, Any]], name: str, path: Path
) -> None:
    status, answer = _put(job_server, _with(existing[name], path, None))
    if _pattern(path) in NEEDED:
        assert status == 422
        assert f"{_text(path)}: Invalid value: is missing" in answer
        return
    if _pattern(path) in MUTABLE | MUTABLE_UNMADE:
        # Without learners, which are 1 by default, other fields of the pool name learners that it lacks.
        assert status == 200 or (path[-1] == "learners" and "once the job exists" not in answer), answer
        return
    assert status == 422
    if _pattern(path) in MUTABLE_SUSPENDED:
        _assert_says_to_suspend(answer, path)
        return
    assert f'"{_named(path)}' in answer


@pytest.mark.parametrize(
    ("name", "path"), _identified([one for one in FIELDS if _pattern(one[1]) in MUTABLE_SUSPENDED])
)
@pytest.mark.parametrize("removed", [False, True])
def test_some_fields_can_be_changed_together_with_suspending(
    job_server: ApiServer, existing: dict[str, dict[str, Any]], name: str, path: Path, *, removed: bool
) -> None:
    job = existing[name]
    changed_job = _with(job, path, None) if removed and _optional(path) else _other(job, path)
    status, answer = _put(job_server, _with(changed_job, ("spec", "suspend"), value=True))
    assert status == 200, answer


def test_what_pods_are_made_of_can_be_changed_together_with_resuming(
    job_server: ApiServer, existing: dict[str, dict[str, Any]]
) -> None:
    job = _with(existing["asleep"], ("spec", "suspend"), value=False)
    status, answer = _put(job_server, _with(job, ("spec", "image"), "example.com/trainer:2"))
    assert status == 200, answer


@pytest.mark.parametrize(("name", "path"), _identified(FIELDS))
def test_a_suspended_job_keeps_what_its_training_depends_on(
    job_server: ApiServer, existing: dict[str, dict[str, Any]], name: str, path: Path
) -> None:
    if _may_change(path) or _pattern(path) in MUTABLE_SUSPENDED:
        return
    status, answer = _put(job_server, _with(_other(existing[name], path), ("spec", "suspend"), value=True))
    assert status == 422
    assert "delete" not in answer, "that would cost the model"


def _assert_says_to_suspend(answer: str, path: Path) -> None:
    assert "cannot be changed while the job runs; suspend it" in answer
    assert str(path[-1]) in answer


def test_what_the_claim_is_made_of_can_be_changed_until_there_is_one(job_server: ApiServer) -> None:
    status, job = job_server.request("POST", JOBS, changed({"metadata.name": "unmade"}))
    assert status == 201, job
    storage = {"size": "1Gi", "className": "slow", "accessMode": "ReadWriteOncePod"}
    status, answer = _put(job_server, _with(job, ("spec", "syncer", "storage"), storage))
    assert status == 200, answer
    job_server.set_status(f"{JOBS}/unmade", {"syncer": {"claimUid": "uid"}})
    job = job_server.request("GET", f"{JOBS}/unmade")[1]
    for field, value in storage.items():
        status, answer = _put(job_server, _with(job, ("spec", "syncer", "storage", field), value))
        assert status == 422, field
        assert f'"spec.syncer.storage.{field}"' in answer
    job_server.request("DELETE", f"{JOBS}/unmade")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "image"), "example.com/trainer:2"),
        (("spec", "model", "builtin", "vocabularySize"), 300_000),
        (("spec", "regions", 0, "cluster"), {"kubeconfigSecretRef": {"name": "other"}}),
        (("spec", "sync", "grace", "maximumSeconds"), 1),
    ],
    ids=str,
)
def test_an_optional_field_cannot_be_added(
    job_server: ApiServer, existing: dict[str, dict[str, Any]], path: Path, value: object
) -> None:
    status, answer = _put(job_server, _with(existing["token-file"], path, value))
    assert status == 422
    assert f'"{_named(path)}"' in answer


@pytest.mark.parametrize(
    "change",
    [
        lambda regions: regions.insert(0, {"name": "eu", "pools": [{"name": "a", "image": "example.com/trainer:9"}]}),
        lambda regions: regions.pop(),
        lambda regions: regions.reverse(),
        lambda regions: regions[0]["pools"].insert(0, {"name": "third", "batchSize": 3}),
        lambda regions: regions[0]["pools"].pop(0),
        lambda regions: regions[0]["pools"].reverse(),
    ],
    ids=["region added", "region removed", "reordered", "pool added", "pool removed", "pools reordered"],
)
def test_regions_and_pools_are_added_and_removed_while_the_job_runs(
    job_server: ApiServer, existing: dict[str, dict[str, Any]], change: Callable[[list[Any]], object]
) -> None:
    regions = deepcopy(TOKEN_FILE["spec"]["regions"])
    change(regions)
    status, answer = _put(job_server, _with(existing["token-file"], ("spec", "regions"), regions))
    assert status == 200, answer


def test_a_job_at_home_gains_a_region_in_another_cluster(
    job_server: ApiServer, existing: dict[str, dict[str, Any]]
) -> None:
    away = {"name": "away", "pools": [{"name": "a"}], "cluster": {"kubeconfigSecretRef": {"name": "far"}}}
    job = _with(existing["token-file"], ("spec", "regions"), [*TOKEN_FILE["spec"]["regions"], away])
    assert _put(job_server, job)[0] == 422, "nobody there reaches the syncer"
    status, answer = _put(job_server, _with(job, ("spec", "syncer", "expose", "type"), "LoadBalancer"))
    assert status == 200, answer


@pytest.mark.parametrize(
    ("field", "regions"),
    [("spec.regions", []), ("spec.regions[0].pools", [{"name": "us", "pools": []}])],
    ids=["regions", "pools"],
)
def test_the_last_pool_cannot_be_removed(
    job_server: ApiServer, existing: dict[str, dict[str, Any]], field: str, regions: list[Any]
) -> None:
    status, answer = _put(job_server, _with(existing["token-file"], ("spec", "regions"), regions))
    assert status == 422
    assert f'"{field}"' in answer


def test_a_pool_keeps_its_fields_when_another_takes_its_place(
    job_server: ApiServer, existing: dict[str, dict[str, Any]]
) -> None:
    regions = deepcopy(TOKEN_FILE["spec"]["regions"])
    regions[0]["pools"].insert(0, {"name": "third"})
    for field, value, told in (("image", "example.com/trainer:9", "make two"), ("batchSize", 3, "once the job exists")):
        moved = deepcopy(regions)
        moved[0]["pools"][1][field] = value
        status, answer = _put(job_server, _with(existing["token-file"], ("spec", "regions"), moved))
        assert status == 422
        assert told in answer
    elsewhere = deepcopy(TOKEN_FILE["spec"]["regions"])
    elsewhere.insert(0, {"name": "eu", "pools": [{"name": "a"}]})
    elsewhere[1]["pools"][0]["image"] = "example.com/trainer:9"
    status, answer = _put(job_server, _with(existing["token-file"], ("spec", "regions"), elsewhere))
    assert status == 422
    assert "suspend it" in answer


def test_what_must_stay_has_a_rule_for_each_whole_block() -> None:
    for block in ("spec.model", "spec.data", "spec.sync"):
        own = at(job_schema(), block)
        assert {"rule": "self == oldSelf", "message": MESSAGE} in own["x-kubernetes-validations"]
        assert MESSAGE not in str(own["properties"])
    training = at(job_schema(), "spec.training")
    rules = " ".join(one["rule"] for one in training["x-kubernetes-validations"] if one["message"] == MESSAGE)
    free = {name for name, own in training["properties"].items() if f".{name}" not in rules and MESSAGE not in str(own)}
    assert free == {"tokens"}


def test_a_job_of_as_many_pools_as_allowed_is_within_what_rules_cost(job_server: ApiServer) -> None:
    region = {"pools": [{"name": f"pool-{n}", "learners": 2, "image": "i"} for n in range(16)]}
    regions = [{"name": f"region-{n}", **region} for n in range(16)]
    status, job = job_server.request("POST", JOBS, changed({"metadata.name": "large", "spec.regions": regions}))
    assert status == 201, job
    job["spec"]["suspend"] = True
    status, answer = _put(job_server, job)
    job_server.request("DELETE", f"{JOBS}/large")
    assert status == 200, answer


def test_scaling_below_the_quorum_is_refused_like_a_new_job(
    job_server: ApiServer, existing: dict[str, dict[str, Any]]
) -> None:
    job = deepcopy(existing["every-field"])
    for region in job["spec"]["regions"]:
        for pool in region["pools"]:
            pool["learners"] = 0
            pool.pop("excludedIndices", None)
    job["spec"]["regions"][0]["pools"][0]["learners"] = 1
    status, answer = _put(job_server, job)
    assert status == 422
    assert "2 is above the learners of spec.regions, 1; use at most as many" in answer


def test_one_manifest_is_applied_by_client_and_by_server_in_turn(job_server: ApiServer) -> None:
    empty: dict[str, object] = {
        "spec.model.builtin": {},
        "spec.data.text": {},
        "spec.sync": {},
        "spec.syncer": {"podTemplate": {}},
    }
    muon = {"spec.training.optimizer": {"type": "Muon", "muon": {}}}
    job = changed({"metadata.name": "in-turn", **empty, **muon, "spec.regions.0.pools.0.storage": {}})
    for how in (["apply"], ["apply", "--server-side", "--force-conflicts"]) * 2:
        told = job_server.kubectl(*how, "--filename=-", text=json.dumps(job)).stderr
        assert "null" not in told
    job_server.request("DELETE", f"{JOBS}/in-turn")


def test_two_appliers_share_the_lists_of_a_pool(job_server: ApiServer) -> None:
    def apply(manager: str, spec: dict[str, Any]) -> None:
        body = changed({"metadata.name": "shared"}) | ({} if manager == "user" else {"spec": spec})
        if manager == "user":
            body["spec"] |= spec
        text = json.dumps(body)
        job_server.kubectl("apply", "--server-side", f"--field-manager={manager}", "--filename=-", text=text)

    def with_volume(name: str) -> dict[str, Any]:
        mount = {"name": "learner", "volumeMounts": [{"name": name, "mountPath": f"/{name}"}]}
        pod = {"volumes": [{"name": name, "emptyDir": {}}], "imagePullSecrets": [{"name": name}]}
        containers = {"containers": [mount]} if name == "data" else {}
        pools = [{"name": "old", "podTemplate": {"spec": {**pod, **containers}}}]
        return {"regions": [{"name": "us-west", "pools": pools}], "suspend": True}

    apply("user", with_volume("data"))
    apply("platform", with_volume("cache"))
    job = job_server.request("GET", f"{JOBS}/shared")[1]
    found = job["spec"]["regions"][0]["pools"][0]["podTemplate"]["spec"]
    for names in ("volumes", "imagePullSecrets"):
        assert {one["name"] for one in found[names]} == {"data", "cache"}
    assert [one["name"] for one in found["containers"]] == ["learner"]


def test_beside_other_managers_an_applier_sees_only_its_own_fields(job_server: ApiServer) -> None:
    manifest = EVERY_FIELD | {"metadata": {"name": "in-git"}}
    as_argo = ("--server-side", "--force-conflicts", "--field-manager=argocd-controller", "--filename=-")

    def differs() -> bool:
        """As Argo CD compares with ServerSideDiff: by applying without effect."""
        found = job_server.kubectl("diff", *as_argo, text=json.dumps(manifest), check=False)
        assert found.returncode in (0, 1), found.stderr
        return found.returncode == 1

    job_server.kubectl("apply", *as_argo, text=json.dumps(manifest))
    # The operator, and a platform that labels.
    metadata = {"finalizers": ["diloco.dev/clusters"], "labels": {"team": "research"}}
    assert job_server.request("PATCH", f"{JOBS}/in-git", {"metadata": metadata})[0] == 200
    job_server.set_status(f"{JOBS}/in-git", {"phase": "Training"})
    assert not differs()
    scaled = deepcopy(manifest["spec"]["regions"])
    scaled[0]["pools"][0]["learners"] += 1
    assert job_server.request("PATCH", f"{JOBS}/in-git", {"spec": {"regions": scaled}})[0] == 200
    assert differs()
    job_server.kubectl("apply", *as_argo, text=json.dumps(manifest))
    assert not differs()
    job_server.request("PATCH", f"{JOBS}/in-git", {"metadata": {"finalizers": []}})
    job_server.request("DELETE", f"{JOBS}/in-git")
