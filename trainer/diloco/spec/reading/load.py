"""Reads a manifest and returns the validated job, or all its problems."""

import errno
import json
import os
import select
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from diloco.spec.errors import Problem, SpecError
from diloco.spec.job import DiLoCoJob
from diloco.spec.reading.defaults import fill_in
from diloco.spec.reading.document import read_with_lines
from diloco.spec.reading.partly import further_problems
from diloco.spec.reading.translate import translate

MAXIMUM_BYTES = 256 * 1024
"""Largest manifest that is read: far above any real one, and quick enough to parse."""

_PATIENCE_SECONDS = 10.0


def load_job(path: str | Path) -> DiLoCoJob:
    """Read, parse and check the manifest in a file (YAML or JSON, UTF-8).

    Raises:
        SpecError: it cannot be read, is not text, is too large, or has problems that ``parse_job`` finds.
    """
    return parse_job(read_manifest(path), str(path))


def read_manifest(path: str | Path, what: str = "a manifest") -> str:
    """The text of a manifest's file, without a byte order mark. A pipe is read if it delivers data in time.

    ``what``: what the file is, in errors.

    Raises:
        SpecError: it cannot be read, is not text, or is too large.
    """
    source = str(path)
    try:
        content = _read(path)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise SpecError([Problem(source, f"cannot be read: {reason}; use the path of {what}")], source) from None
    if len(content) > MAXIMUM_BYTES:
        raise _unreadable(source, f"is larger than {MAXIMUM_BYTES // 1024} KiB; {what} is a few KiB of YAML")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _unreadable(source, f"is not UTF-8 text; {what} is YAML") from None


def parse_job(text: str, source: str = "manifest") -> DiLoCoJob:
    """Parse and check a manifest: one YAML document (JSON is YAML). ``source`` names it in errors.

    Raises:
        SpecError: with every problem that was found, each with its place.
    """
    if len(text) > MAXIMUM_BYTES:
        raise _unreadable(source, f"is larger than {MAXIMUM_BYTES // 1024} KiB; a manifest is a few KiB of YAML")
    document, lines = read_with_lines(text, source)
    fill_in(document)
    return job_from(document, source, lines)


def job_from(document: object, source: str = "manifest", lines: Mapping[str, int] | None = None) -> DiLoCoJob:
    """Check a manifest that is already plain JSON values, as an API server returns it.

    ``lines``: where in ``source`` each value is, by its path.

    Raises:
        SpecError: with every problem that was found, each with its place.
    """
    if not isinstance(document, dict):
        raise _unreadable(source, "is not a mapping; begin with apiVersion, kind, metadata and spec")
    try:
        # JSON's strict mode does what an API server does with the manifest: "5" is not an integer, a list is a tuple.
        return DiLoCoJob.model_validate_json(json.dumps(document), strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        raise SpecError([*translate(error), *further_problems(document, error)], source, lines) from None


def located(problems: Sequence[Problem], path: Path) -> SpecError:
    """The error for problems that were found later in a manifest, with their lines if its file can be read again."""
    source = str(path)
    lines = read_with_lines(read_manifest(path), source)[1] if path.is_file() else {}
    return SpecError(problems, source, lines)


def _read(path: str | Path) -> bytes:
    """At most one byte more than allowed, which shows that a file is too large, even an endless device."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        content = b""
        while len(content) <= MAXIMUM_BYTES:
            # A file is always ready; a pipe without a writer never is.
            if not select.select([descriptor], [], [], _PATIENCE_SECONDS)[0]:
                raise TimeoutError(errno.ETIMEDOUT, f"no data has arrived for {_PATIENCE_SECONDS:g} s")
            piece = os.read(descriptor, MAXIMUM_BYTES + 1 - len(content))
            if not piece:
                break
            content += piece
        return content
    finally:
        os.close(descriptor)


def _unreadable(source: str, message: str) -> SpecError:
    return SpecError([Problem(source, message)], source)
