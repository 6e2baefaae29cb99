"""Payloads kept for a replay (``--record``): one file each, named by its digest.

So equal payloads are stored once, and a changed file no longer matches its name.
"""

from pathlib import Path

import torch

from diloco.core.buffers import bytes_of
from diloco.runtime.files import UnusableFileError, write_atomically
from diloco.wire.part_messages import payload_digest


def payload_path(directory: Path, digest: str) -> Path:
    """Path of the payload with this digest (hexadecimal)."""
    return directory / digest[:2] / f"{digest}.bin"


def keep_payload(directory: Path, digest: str, payload: torch.Tensor) -> None:
    """Keep a payload (uint8, flat).

    Raises:
        OSError: it could not be written; nothing of it is left.
    """
    path = payload_path(directory, digest)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, bytes_of(payload), durable=False)


def read_payload(directory: Path, digest: str, payload_bytes: int) -> torch.Tensor:
    """The payload with this digest, uint8, shape (payload_bytes,).

    Raises:
        UnusableFileError: it is missing, of another size, or does not have the digest in its name.
    """
    path = payload_path(directory, digest)
    try:
        size = path.stat().st_size
        if size != payload_bytes:
            raise UnusableFileError(f"{path}: {size} bytes, not the {payload_bytes} that were pushed")
        content = bytearray(size)
        with path.open("rb") as file:
            file.readinto(content)
    except OSError as error:
        raise UnusableFileError(f"{path}: {error.strerror or error}") from error
    if payload_digest(memoryview(content)).hex() != digest:
        raise UnusableFileError(f"{path}: its content is not what was pushed: it was changed or damaged")
    return torch.frombuffer(content, dtype=torch.uint8)
