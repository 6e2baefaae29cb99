"""Certificates for a run on this machine, so that only its own processes can join it.

Any user of a machine can connect to loopback, so learners and syncer use certificates of an authority that is made for
the run. The authority's key is never written to disk, and the other keys are in a folder that only the run's user can
read.
"""

import datetime as dt
import shutil
from pathlib import Path

from diloco.local.directory import RunDirectory
from diloco.local.targets import SYNCER
from diloco.spec import DiLoCoJob
from diloco.spec.names.syncer_name import syncer_name

_VALID = dt.timedelta(days=3650)
"""Longer than any run, as these are not renewed. A resumed run gets new ones."""


def issue_certificates(directory: RunDirectory, job: DiLoCoJob) -> None:
    """Make a run's certificates, one for the syncer and one for each pool, replacing earlier ones.

    Raises:
        OSError: they cannot be written.
    """
    # Imported here, as only ``diloco run`` itself needs it: its child processes start faster without.
    from diloco.wire.tls.certificates import Authority  # noqa: PLC0415

    folder = directory.certificates
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(mode=0o700)
    authority = Authority(folder, f"diloco run {job.metadata.name}", valid=_VALID)
    authority.server(SYNCER, syncer_name(job.metadata.name, job.metadata.namespace))
    for region in job.spec.regions:
        for pool in region.pools:
            authority.learner(job.metadata.name, f"{region.name}/{pool.name}", _pool_file(region.name, pool.name))


def syncer_flags(directory: RunDirectory) -> list[str]:
    """The syncer's certificate, as flags of its process."""
    return _flags(directory.certificates, SYNCER)


def learner_flags(directory: RunDirectory, learner: str) -> list[str]:
    """The certificate of the learner's pool, as flags of its process."""
    region, pool, _ = learner.split("/")
    return _flags(directory.certificates, _pool_file(region, pool))


def _pool_file(region: str, pool: str) -> str:
    return f"learner.{region}.{pool}"  # names are DNS labels without dots, so no two pools get the same name


def _flags(folder: Path, name: str) -> list[str]:
    files = {"--tls-ca": "ca.pem", "--tls-cert": f"{name}.pem", "--tls-key": f"{name}.key"}
    return [word for flag, file in files.items() for word in (flag, str(folder / file))]
