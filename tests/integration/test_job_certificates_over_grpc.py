"""The operator's certificates in gRPC's own TLS, which is not Python's: both sides accept them in every phase."""

import base64
import datetime as dt
from collections.abc import Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import grpc
import pytest

from diloco.spec.syncer_name import syncer_name
from diloco.wire.tls import Identity, identity_of
from diloco_operator import names
from diloco_operator.decide.certificates import SETTLING, JobIdentity, certificates
from diloco_operator.names import PoolKey
from diloco_operator.signing import AUTHORITY_LIFE, RandomCertificateMaker

POOL = PoolKey("us-east", "fast")
JOB = JobIdentity("job", "team", names.stateful_sets("job", [POOL]))
SYNCER, LEARNER = names.syncer_secret("job"), names.learner_secret(names.stateful_set("job", POOL))
NOW = dt.datetime.now(dt.UTC)
ANSWER_SECONDS = 20.0

Held = Mapping[str, Mapping[str, str]]


def made(age: dt.timedelta, held: Held | None = None) -> Held:
    return certificates(JOB, held or {}, NOW - age, RandomCertificateMaker()).secrets


def pem(held: Held, secret: str) -> tuple[bytes, bytes, bytes]:
    """Authorities, key and certificate, in gRPC's order."""
    ca, key, certificate = (base64.b64decode(held[secret][name]) for name in ("ca.crt", "tls.key", "tls.crt"))
    return ca, key, certificate


def uris(_: bytes, context: grpc.ServicerContext) -> bytes:
    found: Any = context.auth_context()["peer_uri"]  # the stubs say bytes, and mean several
    return b" ".join(found)


@contextmanager
def serving(held: Held) -> Iterator[int]:
    """A server that answers a learner with what its certificate says."""
    ca, *own = pem(held, SYNCER)
    credentials = grpc.ssl_server_credentials([(own[0], own[1])], root_certificates=ca, require_client_auth=True)
    server = grpc.server(futures.ThreadPoolExecutor(1))
    handler = grpc.method_handlers_generic_handler("test", {"WhoAmI": grpc.unary_unary_rpc_method_handler(uris)})
    server.add_generic_rpc_handlers((handler,))
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


def ask(port: int, credentials: grpc.ChannelCredentials, name: str = syncer_name("job", "team")) -> str:
    named = [("grpc.ssl_target_name_override", name)]
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials, options=named) as channel:
        call: Any = channel.unary_unary("/test/WhoAmI")
        return bytes(call(b"", timeout=ANSWER_SECONDS)).decode()


def learner(held: Held) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(*pem(held, LEARNER))


def rollover() -> list[Held]:
    """The Secrets before, during and after a rollover of the authority, all of them valid now."""
    due = SETTLING + dt.timedelta(minutes=1)
    before = made(due + dt.timedelta(days=30), made(due + AUTHORITY_LIFE * 2 / 3))
    during = made(due, before)
    return [before, during, made(dt.timedelta(minutes=1), during)]


def test_through_a_rollover_every_learner_is_let_in_as_one_of_its_pool() -> None:
    for early, late in pairwise(rollover()):
        for syncer in (early, late):
            with serving(syncer) as port:
                for shown in (early, late):
                    assert identity_of([ask(port, learner(shown))]) == Identity("job", "us-east/fast")


def test_learners_of_earlier_versions_still_know_the_syncer_by_its_service() -> None:
    held = made(dt.timedelta(0))
    with serving(held) as port:
        assert identity_of([ask(port, learner(held), names.syncer_host("job", "team"))])
        with pytest.raises(grpc.RpcError):
            ask(port, learner(held), syncer_name("other", "team"))


def test_another_jobs_certificate_and_none_are_turned_away() -> None:
    ours, other = made(dt.timedelta(0)), made(dt.timedelta(0))
    trusting = {LEARNER: {**other[LEARNER], "ca.crt": ours[LEARNER]["ca.crt"]}}
    with serving(ours) as port:
        for credentials in (learner(trusting), grpc.ssl_channel_credentials(pem(ours, LEARNER)[0])):
            with pytest.raises(grpc.RpcError) as caught:
                ask(port, credentials)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert ask(port, learner(ours))
