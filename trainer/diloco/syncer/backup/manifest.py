"""The manifest of a backup: what it is of, and the size and digest of each file. Written last, so it completes it.

A store has, side by side, a folder ``NAME/`` with the files and the manifest ``NAME.json``. A folder without a manifest
is an upload that is under way or broke off. Names sort by time, and say who wrote what.
"""

import json
import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from diloco.runtime.files import sha256_bytes
from diloco.runtime.json_text import JsonError, parse_json
from diloco.runtime.object_store import ObjectStore, WrongFileError

FORMAT: Final = 1
LIMIT_BYTES: Final = 1 << 20
"""Most bytes of a manifest (ours)."""
ENDING: Final = ".json"
MODEL: Final = "model"
_TIME: Final = "%Y%m%dT%H%M%SZ"
_WRITER_DIGITS: Final = 8
_UNIQUE_DIGITS: Final = 8
_NAME: Final = re.compile(
    rf"^(\d{{8}}T\d{{6}}Z)-([0-9a-f]{{16}})-(\d{{6,18}}|model)-([0-9a-f]{{{_WRITER_DIGITS}}})([0-9a-f]{{{_UNIQUE_DIGITS}}})$"
)
_MOST_FILES: Final = 1 + 4096
"""A checkpoint's manifest, and a file of each fragment (`SyncSpec.fragments`)."""


class BackupError(ValueError):
    """A backup is damaged or not one; one line."""


class BackupFile(BaseModel):
    """One file of a backup."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    size_bytes: int = Field(ge=0, le=2**60)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class BackupManifest(BaseModel):
    """What a backup is of. Fields that later versions add are ignored; those that cannot be raise the format."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: int
    name: str = Field(max_length=100)
    job: str = Field(max_length=253)
    namespace: str = Field(default="", max_length=63)
    """The job's namespace; empty: unknown, as in backups of ``diloco run`` without one."""
    layout: str = Field(max_length=200)
    """Digest of the model's layout."""
    model_parameters: int
    model_fragments: int
    step: int
    """Merges done."""
    files: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$")], BackupFile] = Field(
        min_length=1, max_length=_MOST_FILES
    )

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for file in self.files.values())


@dataclass(frozen=True, slots=True, order=True)
class BackupName:
    """The parts of a backup's name, in the order by which names sort."""

    time: datetime
    training: str
    """Id of the training: one that starts from zero has another."""
    what: str
    """Name of the checkpoint, or `MODEL`."""
    writer: str
    """First digits of the id of the syncer's directory (`SyncerDirectory.writer`)."""
    unique: str
    """Random, so that no two uploads write the same files."""

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The parts of ``text``; None: it is not a backup's name."""
        found = _NAME.match(text)
        if found is None:
            return None
        try:
            time = datetime.strptime(found[1], _TIME).replace(tzinfo=UTC)
        except ValueError:
            return None
        return cls(time, *found.groups()[1:])

    @classmethod
    def after(cls, before: Self | None, now: datetime, training: str, what: str, writer: str) -> Self:
        """A name for a new backup: it sorts after ``before`` even if the clock was set back."""
        time = now.astimezone(UTC).replace(microsecond=0)
        if before is not None and time <= before.time:
            time = before.time + timedelta(seconds=1)
        return cls(time, training, what, writer[:_WRITER_DIGITS], secrets.token_hex(_UNIQUE_DIGITS // 2))

    def is_by(self, training: str, writer: str) -> bool:
        """Whether the syncer's directory with these ids wrote it."""
        return (self.training, self.writer) == (training, writer[:_WRITER_DIGITS])

    @property
    def is_model(self) -> bool:
        """Whether it is of a finished model."""
        return self.what == MODEL

    def __str__(self) -> str:
        return f"{self.time.strftime(_TIME)}-{self.training}-{self.what}-{self.writer}{self.unique}"


def complete(names: list[str]) -> list[BackupName]:
    """The backups that have a manifest, oldest first; ``names`` are all names in the store."""
    return sorted(
        found for name in names if name.endswith(ENDING) and (found := BackupName.parse(name.removesuffix(ENDING)))
    )


def write_manifest(manifest: BackupManifest) -> bytes:
    """A manifest's file."""
    plain = manifest.model_dump(mode="json")
    return json.dumps({"sha256": _digest(plain), "manifest": plain}, indent=1).encode() + b"\n"


def read_manifest(content: bytes, name: str) -> BackupManifest:
    """The manifest in the file ``name`` + `ENDING`.

    Raises:
        LaterBackupError: a later version of diloco wrote it.
        BackupError: it is damaged, not a manifest, or of another name.
    """
    try:
        plain = parse_json(content)
    except JsonError as error:
        raise BackupError(f"its manifest is not JSON: {error}") from None
    if not isinstance(plain, dict) or plain.keys() != {"sha256", "manifest"} or not isinstance(plain["manifest"], dict):
        raise BackupError("its manifest is not that of a backup")
    if plain["sha256"] != _digest(plain["manifest"]):
        raise BackupError("the digest of its manifest does not match: it was changed or damaged")
    form = plain["manifest"].get("format")
    if isinstance(form, int) and form > FORMAT:
        raise LaterBackupError(f"its format is {form}; use the version of diloco that wrote it or a later one")
    try:
        manifest = BackupManifest.model_validate(plain["manifest"])
    except ValidationError as error:
        raise BackupError(f"its manifest is not that of a backup ({error.error_count()} problems)") from None
    if manifest.name != name:
        raise BackupError(f"its manifest is that of {manifest.name[:100]!r}")
    return manifest


def stored_manifest(store: ObjectStore, name: BackupName) -> BackupManifest:
    """The manifest of a backup.

    Raises:
        BackupError: it is damaged, of a later version, or has just been deleted.
        StoreError: the store does not answer.
    """
    try:
        return read_manifest(store.read(f"{name}{ENDING}", LIMIT_BYTES), str(name))
    except WrongFileError as error:
        raise BackupError(str(error)) from None


class LaterBackupError(BackupError):
    """A later version of diloco wrote the backup."""


def _digest(manifest: Any) -> str:
    return sha256_bytes(json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode())
