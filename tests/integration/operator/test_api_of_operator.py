import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from diloco.runtime.backoff import Backoff
from diloco_operator import labels
from diloco_operator.cluster import errors
from diloco_operator.cluster.api import Api, Selection, is_served
from diloco_operator.cluster.cache import Cache, GroupKey, ObjectKey
from diloco_operator.cluster.connection import NoConnectionError, connect
from diloco_operator.cluster.errors import Call
from diloco_operator.cluster.kinds import CONFIG_MAP, JOB, STATEFUL_SET, Kind
from diloco_operator.cluster.requests import Seams
from diloco_operator.cluster.watches import Watch
from testbed.api_server.fault_proxy import FaultProxy
from testbed.api_server.server import ApiServer
from tests.support.closed_loop import run_until_closed

PATIENCE_SECONDS = 60.0
QUICK = Backoff(first_seconds=0.05, most_seconds=0.2, random=lambda: 1.0)


@asynccontextmanager
async def api_at(
    kubeconfig: Path, answered: Callable[[Call, int, float], None] = lambda *_: None
) -> AsyncIterator[Api]:
    connection = await connect(kubeconfig, None)
    async with connection.open() as client:
        yield Api(client, "test-manager", Seams(answered))


def run_with(kubeconfig: Path, scenario: Callable[[Api], Awaitable[None]]) -> None:
    async def run() -> None:
        async with api_at(kubeconfig) as api, asyncio.timeout(PATIENCE_SECONDS):
            await scenario(api)

    run_until_closed(run())


def config_map(namespace: str, name: str, **data: str) -> dict[str, Any]:
    ours = {labels.MANAGED_BY: labels.FIELD_MANAGER, labels.JOB: "job"}
    metadata = {"namespace": namespace, "name": name, "labels": ours}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def job(namespace: str, name: str) -> dict[str, Any]:
    pools = [{"name": "cpu", "learners": 1}]
    return {
        "apiVersion": JOB.api_version,
        "kind": JOB.name,
        "metadata": {"namespace": namespace, "name": name},
        "spec": {
            "model": {"builtin": {"preset": "pico"}},
            "data": {"text": {"path": "/data"}},
            "training": {"tokens": 1_000_000, "sequenceLength": 16, "batchSize": 4},
            "regions": [{"name": "here", "pools": pools}],
        },
    }


def status(namespace: str, name: str, version: str) -> dict[str, Any]:
    metadata = {"namespace": namespace, "name": name, "resourceVersion": version}
    return {"apiVersion": JOB.api_version, "kind": JOB.name, "metadata": metadata, "status": {"reason": "Testing"}}


def test_apply_sets_its_own_fields_keeps_others_and_changes_nothing_twice(server: ApiServer, namespace: str) -> None:
    async def scenario(api: Api) -> None:
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

    run_with(server.kubeconfig, scenario)


def test_a_status_is_refused_for_a_deleted_job_or_an_earlier_version(server: ApiServer, namespace: str) -> None:
    async def scenario(api: Api) -> None:
        with pytest.raises(errors.NotFoundError):
            await api.apply_status(JOB, status(namespace, "gone", "1234"))
        assert await api.items(Selection(JOB, namespace)) == []

        made = await api.create(JOB, job(namespace, "here"))
        with pytest.raises(errors.ConflictError):
            await api.apply_status(JOB, status(namespace, "here", "1"))
        written = await api.apply_status(JOB, status(namespace, "here", made["metadata"]["resourceVersion"]))
        assert written["status"] == {"reason": "Testing"}
        assert written["spec"] == made["spec"]

    run_with(server.kubeconfig, scenario)


def test_only_the_object_that_was_meant_is_deleted(server: ApiServer, namespace: str) -> None:
    async def scenario(api: Api) -> None:
        live = await api.apply(CONFIG_MAP, config_map(namespace, "a"))
        with pytest.raises(errors.ConflictError):
            await api.delete(CONFIG_MAP, namespace, "a", {"uid": "1234"})
        await api.delete(CONFIG_MAP, namespace, "a", {"uid": live["metadata"]["uid"]})
        assert await api.find_metadata(CONFIG_MAP, namespace, "a") is None
        with pytest.raises(errors.NotFoundError):
            await api.delete(CONFIG_MAP, namespace, "a", {"uid": live["metadata"]["uid"]})

    run_with(server.kubeconfig, scenario)


def test_a_list_comes_whole_however_small_its_pages_are(server: ApiServer, namespace: str) -> None:
    async def scenario(api: Api) -> None:
        for number in range(7):
            await api.apply(CONFIG_MAP, config_map(namespace, f"map-{number}"))
        selection = Selection(CONFIG_MAP, namespace, labels=labels.OF_OPERATOR)
        pages = [page async for page in api.pages(selection, page_objects=3)]
        assert [len(page["items"]) for page in pages] == [3, 3, 1]
        assert len({page["metadata"]["resourceVersion"] for page in pages}) == 1

    run_with(server.kubeconfig, scenario)


def test_what_is_forbidden_is_named_by_verb_and_resource(server: ApiServer, namespace: str) -> None:
    async def scenario(api: Api) -> None:
        with pytest.raises(errors.ForbiddenError, match=r"^list statefulsets\.apps .*statefulsets"):
            await api.items(Selection(STATEFUL_SET, namespace))

    run_with(server.kubeconfig_for("nobody"), scenario)


def test_what_the_schema_refuses_is_invalid_and_says_the_field(server: ApiServer, namespace: str) -> None:
    async def scenario(api: Api) -> None:
        bad = job(namespace, "bad")
        bad["spec"]["training"]["tokens"] = -1
        with pytest.raises(errors.InvalidError, match=r"spec\.training\.tokens"):
            await api.create(JOB, bad)

    run_with(server.kubeconfig, scenario)


def test_a_kind_that_is_not_installed_is_told_from_one_without_objects(server: ApiServer, namespace: str) -> None:
    async def scenario(api: Api) -> None:
        assert await is_served(api, JOB, namespace)
        assert not await is_served(api, Kind("Other", "others", "diloco.dev", "v1alpha1"), namespace)

    run_with(server.kubeconfig, scenario)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ({"code": 429, "reason": "TooManyRequests", "headers": {"Retry-After": "7"}}, errors.TooManyRequestsError),
        ({"code": 500}, errors.UnavailableError),
        ({"code": 0}, errors.UnavailableError),
        ({"code": 0, "after_asking": True}, errors.UnavailableError),
    ],
)
def test_faults_on_the_way_are_typed_and_tried_once(
    namespace: str, proxy: FaultProxy, fault: dict[str, Any], kind: type[errors.ApiError]
) -> None:
    async def scenario(api: Api) -> None:
        proxy.fault("PATCH .*configmaps", **fault)
        with pytest.raises(kind) as caught:
            await api.apply(CONFIG_MAP, config_map(namespace, "a"))
        assert proxy.asked("PATCH .*configmaps") == 1
        assert caught.value.retry_after_seconds == (7.0 if fault["code"] == 429 else 0.0)
        await api.apply(CONFIG_MAP, config_map(namespace, "a"))

    run_with(proxy.kubeconfig, scenario)


def test_every_answer_is_counted_and_so_is_none(namespace: str, proxy: FaultProxy) -> None:
    counted: list[tuple[str, int]] = []

    async def run() -> None:
        async with api_at(proxy.kubeconfig, lambda call, code, _: counted.append((call.verb, code))) as api:
            await api.apply(CONFIG_MAP, config_map(namespace, "a"))
            # Twice: the HTTP client itself repeats a GET whose connection turns out to be closed.
            proxy.fault("GET .*configmaps/a", times=2, code=0)
            for _ in range(2):
                try:
                    await api.get(CONFIG_MAP, namespace, "a")
                except errors.UnavailableError:
                    continue

    run_until_closed(run())
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

    async def until(self, holds: Callable[[], object]) -> None:
        while not holds():  # noqa: ASYNC110 # the code under test signals nothing
            await asyncio.sleep(0.02)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self.watch.run())
        await self.watch.synced.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait((self._task,))


def test_a_watch_brings_what_there_was_what_comes_and_what_goes(server: ApiServer, namespace: str) -> None:
    async def scenario(api: Api) -> None:
        await api.apply(CONFIG_MAP, config_map(namespace, "before", x="1"))
        unlabelled = config_map(namespace, "foreign")
        del unlabelled["metadata"]["labels"]
        await api.apply(CONFIG_MAP, unlabelled)
        async with Watching(api, namespace) as watching:
            assert watching.data("before") == {"x": "1"}
            live = await api.apply(CONFIG_MAP, config_map(namespace, "after", x="2"))
            await watching.until(lambda: watching.data("after") == {"x": "2"})
            await api.delete(CONFIG_MAP, namespace, "after", {"uid": live["metadata"]["uid"]})
            await watching.until(lambda: watching.data("after") is None)
            assert watching.data("foreign") is None
            assert set(watching.told) == {GroupKey(namespace, "job")}

    run_with(server.kubeconfig, scenario)


def test_a_watch_that_is_cut_goes_on_where_it_was_without_a_new_list(namespace: str, proxy: FaultProxy) -> None:
    async def scenario(api: Api) -> None:
        async with Watching(api, namespace) as watching:
            for number in range(3):
                watches = proxy.asked("watch=true")
                proxy.cut()
                await api.apply(CONFIG_MAP, config_map(namespace, f"map-{number}"))
                await watching.until(lambda n=number: watching.data(f"map-{n}") is not None)  # type: ignore[misc]
                await watching.until(lambda w=watches: proxy.asked("watch=true") > w)  # type: ignore[misc]
        assert proxy.asked("GET .*configmaps.*limit=") == 1

    run_with(proxy.kubeconfig, scenario)


def test_a_version_that_is_no_more_brings_a_new_list_and_nothing_is_missed(namespace: str, proxy: FaultProxy) -> None:
    async def scenario(api: Api) -> None:
        live = await api.apply(CONFIG_MAP, config_map(namespace, "goes"))
        async with Watching(api, namespace) as watching:
            gone = proxy.fault("watch=true", times=-1, code=410, reason="Expired")
            proxy.cut()
            await watching.until(lambda: gone.struck)
            await api.delete(CONFIG_MAP, namespace, "goes", {"uid": live["metadata"]["uid"]})
            await api.apply(CONFIG_MAP, config_map(namespace, "comes"))
            proxy.mend()
            await watching.until(lambda: watching.data("comes") is not None and watching.data("goes") is None)

    run_with(proxy.kubeconfig, scenario)


def test_a_real_server_says_itself_that_a_version_is_too_old(server: ApiServer, namespace: str) -> None:
    async def scenario(api: Api) -> None:
        with pytest.raises(errors.GoneError):
            # The definition was installed later: the server has no history of jobs from that time.
            async for _ in api.watch(Selection(JOB, namespace), "1"):
                pass

    run_with(server.kubeconfig, scenario)


def test_a_watch_retries_a_failing_server_and_reports_the_problem(namespace: str, proxy: FaultProxy) -> None:
    async def scenario(api: Api) -> None:
        async with Watching(api, namespace) as watching:
            heard_at = watching.watch.heard_at
            away = proxy.fault("configmaps", times=-1, code=500)
            proxy.cut()
            await watching.until(lambda: away.struck >= 3)
            assert watching.watch.problem
            assert watching.watch.heard_at == heard_at
            proxy.mend()
            await api.apply(CONFIG_MAP, config_map(namespace, "a"))
            await watching.until(lambda: watching.data("a") is not None)
            assert not watching.watch.problem

    run_with(proxy.kubeconfig, scenario)


def test_without_a_usable_kubeconfig_the_mistake_is_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("- not\n- a\n- kubeconfig\n")
    for path in (tmp_path / "absent", broken):
        with pytest.raises(NoConnectionError) as caught:
            run_until_closed(connect(path, None))
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
