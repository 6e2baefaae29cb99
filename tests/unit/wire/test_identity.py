from pathlib import Path

import pytest

from diloco.wire.errors import IdentityError
from diloco.wire.tls.tls import ClientTls, Identity, Peer, ServerTls, TlsFileError, identity_of


def test_an_identity_is_read_from_its_uri() -> None:
    identity = Identity("two-regions", "us-east/fast/1")
    assert identity.uri == "diloco://two-regions/learner/us-east/fast/1"
    assert identity_of(["spiffe://cluster/else", identity.uri]) == identity


@pytest.mark.parametrize(
    "names",
    [
        [],
        ["diloco://job/learner/a"],
        ["diloco://job/learner/a/b", "diloco://job/learner/a/b/0"],
        ["diloco://job/syncer/a/b/0"],
        ["diloco:///learner/a/b/0"],
        ["diloco://job/learner/a//0"],
        ["diloco://[job/learner/a/b/0"],
    ],
)
def test_a_certificate_without_one_clear_identity_has_none(names: list[str]) -> None:
    assert identity_of(names) is None


def test_a_certified_peer_speaks_only_for_itself() -> None:
    peer = Peer("ipv4:10.0.0.1:5", "a/b/0", "job")
    peer.must_be("a/b/0")
    peer.must_be("a/b/0", "job")
    with pytest.raises(IdentityError, match="learner a/b/0, the message says a/b/1"):
        peer.must_be("a/b/1")
    with pytest.raises(IdentityError, match="job job, the message says other"):
        peer.must_be("a/b/0", "other")


def test_a_pools_certificate_is_valid_for_its_learners_and_no_others() -> None:
    identity = identity_of(["diloco://job/learner/a/b"])
    assert identity == Identity("job", "a/b")
    peer = Peer("ipv4:10.0.0.1:5", identity.learner, identity.job)
    peer.must_be("a/b/0", "job")
    peer.must_be("a/b/17", "job")
    for other in ("a/c/0", "a/b2/0", "a/b", "a", "a/b/0/1"):
        with pytest.raises(IdentityError, match=f"that of pool a/b, the message says {other}"):
            peer.must_be(other, "job")


def test_without_certificates_everybody_is_believed() -> None:
    Peer("ipv4:10.0.0.1:5").must_be("a/b/1", "job")


@pytest.mark.parametrize("side", [ServerTls, ClientTls])
def test_a_file_that_is_no_certificate_is_named(side: type[ServerTls | ClientTls], tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing of the kind")
    with pytest.raises(TlsFileError, match=r"ca\.pem: not a PEM file"):
        side(tmp_path / "ca.pem", tmp_path / "c.pem", tmp_path / "k.pem").read()
    with pytest.raises(TlsFileError, match=r"absent\.pem: No such file"):
        side(tmp_path / "absent.pem", tmp_path / "c.pem", tmp_path / "k.pem").read()
