"""Who may speak to a syncer that is reachable from outside, and certificates that are revoked while learners train.

The connections come from this machine, which is outside of every cluster, to the port that learners of the other
cluster use.
"""

import base64
import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest

from diloco.spec.names.syncer_name import syncer_name
from diloco.wire.channel import SERVICE, SESSION
from diloco.wire.client.client import ClientOptions
from diloco.wire.convert import pack
from diloco.wire.errors import IdentityError, RefusedError, RevokedError, UnavailableError, WireError
from diloco.wire.messages import Join
from diloco.wire.tls.tls import ClientTls
from diloco_operator import names
from diloco_operator.decide.certificates import AUTHORITY_KEY, CA, CERTIFICATE, KEY, learner_names
from diloco_operator.names import PoolKey
from diloco_operator.signing import (
    RandomCertificateMaker,
    certificate_pem,
    key_pem,
    new_leaf,
    read_authority,
)
from testbed.blocking_client import BlockingClient
from testbed.kind.clusters import Cluster
from testbed.kind.peers import diloco
from testbed.kind.waiting import wait_until
from tests.support.across import EAST, WEST, Pair, endpoint, look_again, region
from tests.support.cluster_jobs import ClusterJob, apply_idle, manifest

pytestmark = pytest.mark.timeout(600)

POOL = PoolKey("west", "cpu")
STRANGER = "west/cpu/9"
"""An id of the pool that no learner has, so that no learner is disturbed."""
JOIN = Join("pair", STRANGER, "stranger", "layout of another model")
"""The manifest that it names is never the job's."""
Files = Mapping[str, bytes]


def secret(cluster: Cluster, namespace: str, name: str) -> dict[str, bytes]:
    """What a Secret holds."""
    data: dict[str, Any] = cluster.get("secrets", name, namespace)["data"]
    return {key: base64.b64decode(value) for key, value in data.items()}


def learners_files(job: ClusterJob, region_name: str) -> dict[str, bytes]:
    """The certificate, key and authority of a pool, from its Secret where it runs."""
    name = names.learner_secret(names.stateful_set(job.name, PoolKey(region_name, "cpu")))
    return secret(job.cluster, job.namespace, name)


def expired(job: ClusterJob) -> dict[str, bytes]:
    """A certificate of the pool from its own authority, made a hundred days ago."""
    held = secret(job.cluster, job.namespace, names.authority_secret(job.name))
    authority = read_authority(held[CA], held[AUTHORITY_KEY])
    made = dt.datetime.now(dt.UTC) - dt.timedelta(days=100)
    leaf = new_leaf(authority, learner_names(job.name, POOL), made, RandomCertificateMaker())
    return {CA: held[CA], CERTIFICATE: certificate_pem(leaf.certificate), KEY: key_pem(leaf.key)}


def refusal(job: ClusterJob, files: Files, folder: Path) -> WireError:
    """Why the syncer lets nobody in who has these files and joins with `JOIN`."""
    for name in (CA, CERTIFICATE, KEY):
        (folder / name).write_bytes(files[name])
    tls = ClientTls(folder / CA, folder / CERTIFICATE, folder / KEY, server_name=syncer_name(job.name, job.namespace))
    with BlockingClient(ClientOptions(endpoint(job), tls=tls)) as client, client.open_session(JOIN) as session:
        with pytest.raises(WireError) as caught:
            next(iter(session))
        return caught.value


def test_only_certificates_of_the_jobs_own_pool_are_let_in(pair: Pair, tmp_path: Path) -> None:
    own = learners_files(pair.there(pair.west), "west")
    # This far, only with a valid one: what is wrong is the model.
    assert isinstance(refusal(pair.job, own, tmp_path), RefusedError)
    others = refusal(pair.job, learners_files(pair.job, "east"), tmp_path)
    assert isinstance(others, IdentityError)
    assert "the certificate is that of pool east/cpu" in str(others)
    assert isinstance(refusal(pair.job, expired(pair.job), tmp_path), UnavailableError)
    another = apply_idle(pair.home, pair.job.namespace, manifest("another", region("west")))
    # With our authority, as it would otherwise not trust the syncer.
    theirs = {**learners_files(another, "west"), CA: own[CA]}
    assert isinstance(refusal(pair.job, theirs, tmp_path), UnavailableError)
    another.delete()
    assert code_without_certificate(pair.job, own[CA]) is grpc.StatusCode.UNAVAILABLE
    pair.job.train_on(EAST, WEST)


def code_without_certificate(job: ClusterJob, authority: bytes) -> grpc.StatusCode:
    """How a call ends of somebody who knows where the syncer is and whom to trust, and has no certificate."""
    credentials = grpc.ssl_channel_credentials(root_certificates=authority)
    options = [("grpc.ssl_target_name_override", syncer_name(job.name, job.namespace))]
    with grpc.secure_channel(endpoint(job), credentials, options=options) as channel:
        session: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(f"/{SERVICE}/{SESSION}")
        call = session(iter([pack(JOIN)]), timeout=30)
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
    return caught.value.code()


def test_a_revoked_certificate_is_refused_and_its_learner_goes_on(pair: Pair, tmp_path: Path) -> None:
    there = pair.there(pair.west)
    pods, old = pair.pods(), learners_files(there, "west")
    access = ("--namespace", pair.job.namespace, "--kubeconfig", pair.home.kubeconfig)
    diloco("cluster", "revoke", pair.job.name, "west", *access)
    wait_until(lambda: learners_files(there, "west")[CERTIFICATE] != old[CERTIFICATE], "it is replaced")
    # Nodes give pods what has changed in their Secrets within two minutes, and at once when a pod changes.
    look_again(pair.job, pair.job.syncer().name)
    wait_until(lambda: isinstance(refusal(pair.job, old, tmp_path), RevokedError), "it is refused")
    assert isinstance(refusal(pair.job, learners_files(there, "west"), tmp_path), RefusedError)
    look_again(there, there.pod_name(WEST))
    pair.job.all_train(EAST, WEST)
    pair.job.train_on(EAST, WEST)
    assert pair.pods() == pods
