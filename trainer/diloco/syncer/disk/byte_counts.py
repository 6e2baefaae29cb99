"""Bytes by region in a checkpoint: a file of its own beside the manifest.

An earlier version refuses a manifest with a field that it does not know, and so every checkpoint of a job whose upgrade
is taken back; a file that it does not know it leaves alone. The counts decide nothing, so one that cannot be read is
counted from zero.
"""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from diloco.runtime.files import UnusableFileError, fsync_file, read_json
from diloco.spec.syncer_status import RegionBytes

_log = logging.getLogger(__name__)

FILE: Final = "bytes.json"
_COUNTS: Final = TypeAdapter(tuple[RegionBytes, ...])


def write_counts(folder: Path, counts: Sequence[RegionBytes]) -> None:
    """Write them into a checkpoint's folder.

    Raises:
        OSError: they could not be written.
    """
    path = folder / FILE
    path.write_text(json.dumps([one.model_dump() for one in counts]) + "\n")
    fsync_file(path)


def read_counts(folder: Path) -> tuple[RegionBytes, ...]:
    """The counts of a checkpoint; none if it has none, as those of earlier versions."""
    path = folder / FILE
    if not path.exists():
        return ()
    try:
        return _COUNTS.validate_python(read_json(path))
    except (UnusableFileError, ValidationError) as error:
        _log.warning("%s: bytes by region are counted from zero (%s)", path, str(error).splitlines()[0])
        return ()
