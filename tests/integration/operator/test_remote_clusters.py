"""A remote cluster that hangs, refuses, distrusts, forbids or changes its mind, on real API servers."""

import asyncio
import base64
import copy
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from diloco_operator.api_server.cache import GroupKey
from diloco_operator.api_server.errors import ForbiddenError, UnansweredError, UnauthorizedError, UnavailableError
from diloco_operator.api_server.kinds import CONFIG_MAP, SECRET
from diloco_operator.cluster_state import CLUSTER_LABEL, ClusterState, Credential
from diloco_operator.clusters.slots import MOST_CLUSTERS
from testbed.api_server.certificates import Authority
from testbed.api_server.server import ApiServer
from tests.support.kubeconfigs import inline
from tests.support.remote_scene import Far, Scene, config_map


async def test_what_is_there_is_listed_and_followed(scene: Scene, far: Far) -> None:
    far.server.request("POST", CONFIG_MAP.path(far.namespace), config_map(far.namespace, "before"))
    far.server.request("POST", CONFIG_MAP.path(far.namespace), config_map(far.namespace, "others", home="else"))
    scene.secret("far", far.kubeconfig())
    scene.use("far")
    assert not scene.seen().settled
    seen = await scene.becomes(ClusterState.READY)
    assert (seen.namespace, seen.message) == (far.namespace, "")
    assert seen.seen_at is not None
    assert scene.cached() == {"before"}
    assert await scene.write("after") is None
    await scene.until("the new one is seen", lambda: scene.cached() == {"before", "after"})
    assert set(scene.told) == {scene.job}


async def test_a_cluster_that_hangs_is_away_until_it_answers(scene: Scene, far: Far) -> None:
    ready = await scene.reach(far)
    far.server.pause()
    try:
        assert isinstance(await scene.write("a"), UnansweredError)
        seen = scene.seen()
        assert seen.state is ClusterState.UNREACHABLE
        assert seen.message.endswith("does not answer: no answer in time")
        assert ready.seen_at is not None
        assert seen.seen_at is not None
        assert seen.seen_at >= ready.seen_at
    finally:
        far.server.resume()
    await scene.becomes(ClusterState.READY)
    assert await scene.write("b") is None


async def test_a_cluster_that_hangs_costs_one_request_at_a_time(scene: Scene, far: Far) -> None:
    scene.secret("far", far.kubeconfig())
    far.server.pause()
    try:
        scene.use("far")
        await scene.becomes(ClusterState.UNREACHABLE)
        assert {call.resource for call in scene.requests} == {"version"}
    finally:
        far.server.resume()
    await scene.becomes(ClusterState.READY)


async def test_a_cluster_that_refuses_is_away_until_it_is_back(scene: Scene, far: Far) -> None:
    await scene.reach(far)
    assert await scene.write("a") is None
    await scene.until("it is seen", lambda: scene.cached() == {"a"})
    await asyncio.to_thread(far.server.stop)
    seen = await scene.becomes(ClusterState.UNREACHABLE)
    assert seen.message.endswith("Connection refused")
    assert scene.cached() == {"a"}
    await asyncio.to_thread(far.server.start)
    await scene.becomes(ClusterState.READY)
    assert await scene.write("b") is None
    await scene.until("it is seen", lambda: scene.cached() == {"a", "b"})


async def test_an_account_that_is_gone_is_said_until_the_secret_holds_another(scene: Scene, far: Far) -> None:
    await scene.reach(far)
    far.remove_account()
    # The server remembers for a moment that it knew the token.
    await scene.until("writes are refused", lambda: scene.seen().state is ClusterState.UNAUTHORIZED)
    assert isinstance(await scene.write("a"), UnauthorizedError)
    far.make_account()
    scene.secret("far", far.kubeconfig())
    await scene.becomes(ClusterState.READY)
    assert await scene.write("b") is None


async def test_a_missing_rule_is_named_and_the_rest_goes_on(scene: Scene, far: Far) -> None:
    scene.secret("far", far.kubeconfig())
    far.allow(("patch", "configmaps"), ("list", "services"))
    scene.use("far")
    seen = await scene.becomes(ClusterState.FORBIDDEN)
    assert seen.state.takes_writes
    assert seen.unlisted == {"Service"}
    assert seen.message.endswith(f"does not allow to list services in namespace {far.namespace}")
    assert isinstance(await scene.write("a"), ForbiddenError)
    await scene.until("both are named", lambda: "list services, patch configmaps" in scene.seen().message)
    far.allow()
    await scene.becomes(ClusterState.READY)
    assert await scene.write("a") is None


async def test_a_server_of_another_authority_gets_no_request(scene: Scene, far: Far, tmp_path: Path) -> None:
    config = far.kubeconfig()
    wrong = copy.deepcopy(config)
    authority = Authority(tmp_path).certificate
    wrong["clusters"][0]["cluster"]["certificate-authority-data"] = inline(authority)
    scene.secret("far", wrong)
    scene.use("far")
    seen = await scene.becomes(ClusterState.UNTRUSTED)
    assert "is not trusted: certificate of 127.0.0.1" in seen.message
    scene.secret("far", config)
    await scene.becomes(ClusterState.READY)


async def test_a_program_in_a_kubeconfig_never_runs(scene: Scene, far: Far, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    program = {"apiVersion": "client.authentication.k8s.io/v1", "command": "touch", "args": [str(ran)]}
    scene.secret("far", far.kubeconfig(exec={**program, "interactiveMode": "Never"}))
    scene.use("far")
    seen = await scene.becomes(ClusterState.KUBECONFIG_UNUSABLE)
    assert seen.message.startswith("users[0].user.exec: is not read: it may run a program")
    scene.secret("far", far.kubeconfig())
    await scene.becomes(ClusterState.READY)
    scene.secret("far", far.kubeconfig(exec=program))
    await scene.becomes(ClusterState.KUBECONFIG_UNUSABLE)
    assert not ran.exists()


async def test_a_secret_must_be_there_labelled_and_hold_the_key(scene: Scene, far: Far) -> None:
    scene.use("far")
    seen = await scene.becomes(ClusterState.KUBECONFIG_UNUSABLE)
    assert seen.message.startswith("Secret far: is not in namespace")
    scene.secret("far", far.kubeconfig(), labelled=False)
    scene.use()
    scene.use("far")
    await scene.becomes(ClusterState.KUBECONFIG_UNUSABLE)
    assert scene.seen().message.endswith("kubeconfig` to make it")
    scene.secret("far", far.kubeconfig(), key="other")
    await scene.until("the key is missed", lambda: "has no key kubeconfig" in scene.seen().message)
    scene.secret("far", far.kubeconfig())
    await scene.becomes(ClusterState.READY)
    scene.home.kubectl("label", "secret", "far", f"{CLUSTER_LABEL}-", f"--namespace={scene.job.namespace}")
    await scene.becomes(ClusterState.KUBECONFIG_UNUSABLE)


async def test_no_event_is_lost_while_a_changed_secret_is_taken_up(scene: Scene, far: Far) -> None:
    await scene.reach(far)
    first = scene.remote().session
    made = []
    for number in range(20):
        if number == 5:
            scene.secret("far", far.kubeconfig())
        body = config_map(far.namespace, f"a{number}")
        status, _ = await asyncio.to_thread(far.server.request, "POST", CONFIG_MAP.path(far.namespace), body)
        assert status == 201
        made.append(f"a{number}")
        # A machine that is busy for seconds may look unreachable; that has nothing to do with the Secret.
        assert scene.seen().state in (ClusterState.READY, ClusterState.UNREACHABLE)
    await scene.until("the new one is used", lambda: scene.remote().session is not first)
    await scene.until("all are seen", lambda: scene.cached() == set(made))
    far.server.request("DELETE", CONFIG_MAP.path(far.namespace, "a0"))
    await scene.until("a deletion is seen", lambda: scene.cached() == set(made[1:]))


async def test_another_namespace_in_the_secret_is_another_place(scene: Scene, far: Far, far_server: ApiServer) -> None:
    other = Far(far_server)
    scene.secret("far", far.kubeconfig())
    scene.secret("also", other.kubeconfig())
    scene.use("far", "also")
    await scene.becomes(ClusterState.READY)
    await scene.becomes(ClusterState.READY, "also")
    wanted = [("far", "kubeconfig"), ("also", "kubeconfig")]
    assert {seen.same_as for seen in scene.clusters.of_job(scene.job, wanted).values()} == {""}
    assert await scene.write("a") is None
    await scene.until("it is seen", lambda: scene.cached() == {"a"})
    scene.secret("far", other.kubeconfig())
    await scene.until("the other place is used", lambda: scene.seen().namespace == other.namespace)
    await scene.until("nothing is there", lambda: scene.cached() == set())
    found = scene.clusters.of_job(scene.job, wanted)
    assert {name: seen.same_as for name, seen in found.items()} == {"far": "also", "also": "far"}


async def test_clusters_without_a_secret_take_no_slot_from_others(scene: Scene, far: Far) -> None:
    for number in range(2):
        absent = [f"absent-{number}-{region}" for region in range(64)]
        scene.use(*absent, job=GroupKey(scene.job.namespace, f"job-{number}"))
        await scene.becomes(ClusterState.KUBECONFIG_UNUSABLE, absent[-1])
    await scene.reach(far)


async def test_one_namespace_leaves_slots_for_the_next(scene: Scene) -> None:
    names = [f"far-{number:03d}" for number in range(MOST_CLUSTERS)]
    for name in names:
        scene.secret(name, "no kubeconfig")
    scene.use(*names)
    await scene.becomes(ClusterState.TOO_MANY, names[-1])
    states = Counter(scene.seen(name).state for name in names)
    assert states[ClusterState.TOO_MANY] < MOST_CLUSTERS / 2
    assert scene.clusters.handle(scene.job.namespace, names[-1]) is None
    scene.use(*names[-2:])
    await scene.becomes(ClusterState.KUBECONFIG_UNUSABLE, names[-1])


async def test_a_cluster_that_no_job_names_is_let_go(scene: Scene, far: Far) -> None:
    await scene.reach(far)
    remote = scene.remote()
    scene.use()
    assert scene.clusters.handle(scene.job.namespace, "far") is None
    session = remote.session
    assert session is not None

    async def asks() -> None:
        # The end of a session takes some turns of the loop.
        while True:
            await session.api.version()

    with pytest.raises(UnavailableError, match="closed"):
        await asks()
    scene.use("far")
    await scene.becomes(ClusterState.READY)


async def test_a_token_is_renewed_at_half_of_its_life_and_kept(scene: Scene, far: Far) -> None:
    far.allow(renewal=True)
    given = far.token()
    made_at = time.time()
    await scene.until("tokens have seconds, and a new one ends later", lambda: time.time() >= made_at + 1)
    scene.secret("far", far.kubeconfig(token=given))
    scene.use("far")
    scene.later = lambda: timedelta(seconds=0.6 * far.seconds if scene.token() == given else 0)
    await scene.until("a new one is used", lambda: scene.token() not in ("", given))
    assert (await scene.becomes(ClusterState.READY)).expiring is None
    assert await scene.write("a") is None
    kept = scene.home.request("GET", SECRET.path(scene.job.namespace, "far"))[1]
    assert set(kept["data"]) == {"kubeconfig", "kubeconfig.renewed"}
    scene.use()
    scene.use("far")
    await scene.becomes(ClusterState.READY)
    assert scene.token() == base64.b64decode(kept["data"]["kubeconfig.renewed"]).decode().split()[1]


async def test_a_token_that_cannot_be_renewed_is_said_with_its_end(scene: Scene, far: Far) -> None:
    scene.secret("far", far.kubeconfig())
    scene.later = lambda: timedelta(seconds=0.6 * far.seconds)
    scene.use("far")
    # The token is looked at beside the first lists, and may be known first.
    await scene.until("its end is told", lambda: scene.seen().expiring is not None)
    seen = await scene.becomes(ClusterState.READY)
    assert seen.expiring is not None
    assert seen.expiring.what is Credential.TOKEN
    assert seen.expiring.expires == seen.expiring.issued + timedelta(seconds=far.seconds)
