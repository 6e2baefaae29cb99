"""Copies of the syncer's state, and what a job starts from."""

from typing import Annotated, Literal

from pydantic import Field

from diloco.spec.base import BACKUP_NAME, BACKUP_URL, DNS_LABEL, ENDPOINT_URL, SpecModel

SecretName = Annotated[str, Field(pattern=DNS_LABEL, max_length=63)]
"""The name of a Secret in the job's namespace."""

BackupUrl = Annotated[str, Field(pattern=BACKUP_URL, max_length=1024)]
"""A folder: of a bucket, or of a file system."""

EndpointUrl = Annotated[str, Field(pattern=ENDPOINT_URL, max_length=1024)]
"""Address of an S3-compatible store."""


class Backup(SpecModel):
    """Copies of checkpoints and of the finished model, away from the syncer's volume."""

    url: BackupUrl
    """Folder for the backups of this job's training alone: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, file:///PATH or a
    path; in a cluster, of a volume that ``syncer.podTemplate`` mounts."""
    every_seconds: int = Field(default=600, ge=1, le=604_800)
    """Seconds between backups: the most that a lost volume costs. A longer upload delays the next backup."""
    max_backups: int = Field(default=3, ge=1, le=1000)
    """Backups of checkpoints kept, beside the finished model."""
    secret_name: SecretName | None = None
    """Secret whose keys become environment variables of the syncer, such as AWS_ACCESS_KEY_ID. Only in a cluster.
    Default: the credentials of the pod's service account or node."""
    endpoint: EndpointUrl | None = None
    """Address of an S3-compatible store, such as https://minio.example.com:9000. Default: the provider's."""


class InitFrom(SpecModel):
    """The start of a job whose syncer has no checkpoint."""

    url: BackupUrl
    """Folder of backups, as in ``syncer.backup.url``; with type Weights also a file .safetensors: an exported model, or
    adapter_model.safetensors of peft with its adapter_config.json."""
    type: Literal["Resume", "Weights"] = "Resume"
    """Resume: continue a job of the same name, namespace (unless ``backup`` is given) and model. Weights: begin a new
    job from the trained parameters alone."""
    backup: str | None = Field(default=None, min_length=1, max_length=100, pattern=BACKUP_NAME)
    """Name of one backup. Default: the newest that is complete and undamaged."""
    secret_name: SecretName | None = None
    """As in ``syncer.backup.secretName``, whose variables replace those of this Secret."""
    endpoint: EndpointUrl | None = None
    """As in ``syncer.backup.endpoint``."""
