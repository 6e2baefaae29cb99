import datetime as dt
import stat
from pathlib import Path

import pytest
from cryptography import x509

from diloco.local.certificates import issue_certificates, learner_flags, syncer_flags
from diloco.local.directory import RunDirectory
from diloco.spec import load_job
from diloco.wire.tls.tls import ClientTls, ServerTls, identity_of
from tests.support.local_run import write_job


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    made = RunDirectory(tmp_path)
    issue_certificates(made, load_job(write_job(tmp_path)))
    return made


def files(flags: list[str]) -> tuple[Path, Path, Path]:
    ca, certificate, key = map(Path, flags[1::2])
    return ca, certificate, key


def test_every_process_has_its_certificate_and_a_pool_that_of_its_learners(directory: RunDirectory) -> None:
    ServerTls(*files(syncer_flags(directory))).read()
    read = ClientTls(*files(learner_flags(directory, "west/old/0"))).read()
    names = x509.load_pem_x509_certificate(read.certificate).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    identity = identity_of(names.value.get_values_for_type(x509.UniformResourceIdentifier))
    assert identity is not None
    assert (identity.job, identity.learner) == ("small", "west/old")


def test_nobody_else_can_read_the_keys_and_the_authoritys_is_kept_nowhere(directory: RunDirectory) -> None:
    folder = directory.certificates
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    keys = sorted(folder.glob("*.key"))
    assert [key.name for key in keys] == ["learner.east.fast.key", "learner.west.old.key", "syncer.key"]
    assert all(stat.S_IMODE(key.stat().st_mode) == 0o600 for key in keys)


def test_they_outlast_every_run_and_a_resumed_one_gets_new_ones(directory: RunDirectory, tmp_path: Path) -> None:
    authority = directory.certificates / "ca.pem"
    before = authority.read_bytes()
    expires = x509.load_pem_x509_certificate(before).not_valid_after_utc
    assert expires > dt.datetime.now(dt.UTC) + dt.timedelta(days=3000)
    issue_certificates(directory, load_job(write_job(tmp_path)))
    assert authority.read_bytes() != before
