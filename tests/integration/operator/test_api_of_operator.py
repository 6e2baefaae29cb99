import asyncio
import json
import time
from typing import Any, Self

import pytest

from diloco.runtime.backoff import Backoff
from diloco_operator import labels
from diloco_operator.api_server import errors
from diloco_operator.api_server.api import Api, Selection
from diloco_operator.api_server.cache import Cache, GroupKey, ObjectKey
from diloco_operator.api_server.kinds import CONFIG_MAP, JOB, STATEFUL_SET, Kind
from diloco_operator.api_server.requests import RequestHooks
from diloco_operator.api_server.watches import Watch
from testbed.api_server.fault_proxy import FaultProxy
from testbed.api_server.server import ApiServer
from tests.support.closed_loop import until
from tests.support.operator_scene import api_at, manifest

QUICK = Backoff(first_seconds=0.05, most_seconds=0.2, random=lambda: 1.0)


def config_map(namespace: str, name: str, **data: str) -> dict[str, Any]:
    ours = {labels.MANAGED_BY: labels.FIELD_MANAGER, labels.JOB: "job"}
    metadata = {"namespace": namespace, "name": name, "labels": ours}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def job(namespace: str, name: str) -> dict[str, Any]:
    return manifest(name) | {"metadata": {"namespace": namespace, "name": name}}


def status(namespace: str, name: str, version: str) -> dict[str, Any]:
    metadata = {"namespace": namespace, "name": name, "resourceVersion": version}
    return {"apiVersion": JOB.api_version, "kind": JOB.name, "metadata": metadata, "status": {"reason": "Testing"}}


async def test_apply_sets_its_own_fields_keeps_others_and_changes_nothing_twice(
    api: Api, server: ApiServer, namespace: str
) -> None:
    first = await api.apply(CONFIG_MAP, config_map(namespace, "a", ours="1"))
    patch = json.dumps({"data": {"ours": "theirs", "other": "theirs"}})
    await asyncio.to_thread(
        server.kubectl, "patch", "configmap", "a", f"--namespace={namespace}", "--type=merge", f"--patch={patch}"
    )
    second = await api.apply(CONFIG_MAP, config_map(namespace, "a", ours="1"))
    third = await api.apply(CONFIG_MAP, config_map(namespace, "a", ours="1"))
    assert first["data"] == {"ours": "1"}
    assert second["data"] == {"ours": "1", "other": "theirs"}
    assert third["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]


async def test_a_status_is_refused_for_a_deleted_job_or_an_earlier_version(api: Api, namespace: str) -> None:
    with pytest.raises(errors.NotFoundError):
        await api.apply_status(JOB, status(namespace, "gone", "1234"))
    assert await api.items(Selection(JOB, namespace)) == []

    made = await api.create(JOB, job(namespace, "here"))
    with pytest.raises(errors.ConflictError):
        await api.apply_status(JOB, status(namespace, "here", "1"))
    written = await api.apply_status(JOB, status(namespace, "here", made["metadata"]["resourceVersion"]))
    assert written["status"] == {"reason": "Testing"}
    assert written["spec"] == made["spec"]


async def test_only_the_object_that_was_meant_is_deleted(api: Api, namespace: str) -> None:
    live = await api.apply(CONFIG_MAP, config_map(namespace, "a"))
    with pytest.raises(errors.ConflictError):
        await api.delete(CONFIG_MAP, namespace, "a", {"uid": "1234"})
    await api.delete(CONFIG_MAP, namespace, "a", {"uid": live["metadata"]["uid"]})
    assert await api.find_metadata(CONFIG_MAP, namespace, "a") is None
    with pytest.raises(errors.NotFoundError):
        await api.delete(CONFIG_MAP, namespace, "a", {"uid": live["metadata"]["uid"]})


async def test_a_list_comes_whole_however_small_its_pages_are(api: Api, namespace: str) -> None:
    for number in range(7):
        await api.apply(CONFIG_MAP, config_map(namespace, f"map-{number}"))
    selection = Selection(CONFIG_MAP, namespace, labels=labels.OF_OPERATOR)
    pages = [page async for page in api.pages(selection, page_objects=3)]
    assert [len(page["items"]) for page in pages] == [3, 3, 1]
    assert len({page["metadata"]["resourceVersion"] for page in pages}) == 1


async def test_what_is_forbidden_is_named_by_verb_and_resource(server: ApiServer, namespace: str) -> None:
    async with api_at(server.kubeconfig_for("nobody")) as api:
        with pytest.raises(errors.ForbiddenError, match=r"^list statefulsets\.apps .*statefulsets"):
            await api.items(Selection(STATEFUL_SET, namespace))


async def test_what_the_schema_refuses_is_invalid_and_says_the_field(api: Api, namespace: str) -> None:
    bad = job(namespace, "bad")
    bad["spec"]["training"]["tokens"] = -1
    with pytest.raises(errors.InvalidError, match=r"spec\.training\.tokens"):
        await api.create(JOB, bad)


async def test_a_kind_that_is_not_installed_is_told_from_one_without_objects(api: Api) -> None:
    assert await api.serves(JOB)
    assert not await api.serves(Kind("Other", "others", "diloco.dev", "v1alpha1"))
    assert not await api.serves(Kind("Other", "others", "example.com", "v1"))


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ({"code": 429, "reason": "TooManyRequests", "headers": {"Retry-After": "7"}}, errors.TooManyRequestsError),
        ({"code": 500}, errors.UnavailableError),
        ({"code": 0}, errors.UnavailableError),
        ({"code": 0, "after_asking": True}, errors.UnavailableError),
    ],
)
async def test_faults_on_the_way_are_typed_and_tried_once(
    namespace: str, proxied: Api, proxy: FaultProxy, fault: dict[str, Any], kind: type[errors.ApiError]
) -> None:
    proxy.fault("PATCH .*configmaps", **fault)
    with pytest.raises(kind) as caught:
        await proxied.apply(CONFIG_MAP, config_map(namespace, "a"))
    assert proxy.asked("PATCH .*configmaps") == 1
    assert caught.value.retry_after_seconds == (7.0 if fault["code"] == 429 else 0.0)
    await proxied.apply(CONFIG_MAP, config_map(namespace, "a"))


async def test_every_answer_is_counted_and_so_is_none(namespace: str, proxy: FaultProxy) -> None:
    counted: list[tuple[str, int]] = []
    hooks = RequestHooks(lambda call, code, _: counted.append((call.verb, code)))
    async with api_at(proxy.kubeconfig, hooks) as api:
        await api.apply(CONFIG_MAP, config_map(namespace, "a"))
        # Twice: the HTTP client itself repeats a GET whose connection turns out to be closed.
        proxy.fault("GET .*configmaps/a", times=2, code=0)
        for _ in range(2):
            try:
                await api.get(CONFIG_MAP, namespace, "a")
            except errors.UnavailableError:
                continue
    assert counted == [("patch", 201), ("get", 0), ("get", 200)]


class Watching:
    """A watch of one namespace's ConfigMaps, and the events that it reported."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.cache = Cache(labels.JOB)
        self.told: list[GroupKey] = []
        self._namespace = namespace
        selection = Selection(CONFIG_MAP, namespace, labels=labels.OF_OPERATOR)
        self.watch = Watch(api, selection, self.cache, self.told.append, time.monotonic, QUICK)

    def data(self, name: str) -> dict[str, str] | None:
        known = self.cache.get(ObjectKey("ConfigMap", self._namespace, name))
        return None if known is None else known.get("data", {})

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self.watch.run())
        await self.watch.synced.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait((self._task,))


async def test_a_watch_brings_what_there_was_what_comes_and_what_goes(api: Api, namespace: str) -> None:
    await api.apply(CONFIG_MAP, config_map(namespace, "before", x="1"))
    unlabelled = config_map(namespace, "foreign")
    del unlabelled["metadata"]["labels"]
    await api.apply(CONFIG_MAP, unlabelled)
    async with Watching(api, namespace) as watching:
        assert watching.data("before") == {"x": "1"}
        live = await api.apply(CONFIG_MAP, config_map(namespace, "after", x="2"))
        await until(lambda: watching.data("after") == {"x": "2"})
        await api.delete(CONFIG_MAP, namespace, "after", {"uid": live["metadata"]["uid"]})
        await until(lambda: watching.data("after") is None)
        assert watching.data("foreign") is None
        assert set(watching.told) == {GroupKey(namespace, "job")}


async def test_a_watch_that_is_cut_goes_on_where_it_was_without_a_new_list(
    namespace: str, proxied: Api, proxy: FaultProxy
) -> None:
    async with Watching(proxied, namespace) as watching:
        for number in range(3):
            watches = proxy.asked("watch=true")
            proxy.cut()
            await proxied.apply(CONFIG_MAP, config_map(namespace, f"map-{number}"))
            await until(lambda n=number: watching.data(f"map-{n}") is not None)  # type: ignore[misc]
            await until(lambda w=watches: proxy.asked("watch=true") > w)  # type: ignore[misc]
    assert proxy.asked("GET .*configmaps.*limit=") == 1


async def test_a_version_that_is_no_more_brings_a_new_list_and_nothing_is_missed(
    namespace: str, proxied: Api, proxy: FaultProxy
) -> None:
    live = await proxied.apply(CONFIG_MAP, config_map(namespace, "goes"))
    async with Watching(proxied, namespace) as watching:
        gone = proxy.fault("watch=true", times=-1, code=410, reason="Expired")
        proxy.cut()
        await until(lambda: gone.struck)
        await proxied.delete(CONFIG_MAP, namespace, "goes", {"uid": live["metadata"]["uid"]})
        await proxied.apply(CONFIG_MAP, config_map(namespace, "comes"))
        proxy.mend()
        await until(lambda: watching.data("comes") is not None and watching.data("goes") is None)


async def test_a_real_server_says_itself_that_a_version_is_too_old(api: Api, namespace: str) -> None:
    with pytest.raises(errors.GoneError):
        # The definition was installed later: the server has no history of jobs from that time.
        async for _ in api.watch(Selection(JOB, namespace), "1"):
            pass


async def test_a_watch_retries_a_failing_server_and_reports_the_problem(
    namespace: str, proxied: Api, proxy: FaultProxy
) -> None:
    async with Watching(proxied, namespace) as watching:
        heard_at = watching.watch.heard_at
        away = proxy.fault("configmaps", times=-1, code=500)
        proxy.cut()
        await until(lambda: away.struck >= 3)
        assert watching.watch.problem
        assert watching.watch.heard_at == heard_at
        proxy.mend()
        await proxied.apply(CONFIG_MAP, config_map(namespace, "a"))
        await until(lambda: watching.data("a") is not None)
        assert not watching.watch.problem
