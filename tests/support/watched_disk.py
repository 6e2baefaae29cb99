"""Records what is forced to the disk and renamed, in order, to show what a power failure would leave."""

import os
from pathlib import Path
from typing import Any

import pytest

Forced = tuple[str, str, bytes]
"""What is done, the name of the file or folder, and the content of the file then; a name with a dot in front is '.'."""


def watch_disk(monkeypatch: pytest.MonkeyPatch) -> list[Forced]:
    """Record what is forced and renamed from now on."""
    done: list[Forced] = []
    plain = {name: getattr(os, name) for name in ("fsync", "rename", "replace")}

    def note(what: str, path: Path) -> None:
        done.append(
            (what, "." if path.name.startswith(".") else path.name, b"" if path.is_dir() else path.read_bytes())
        )

    def fsync(descriptor: int) -> None:
        plain["fsync"](descriptor)
        note("forced", Path(f"/proc/self/fd/{descriptor}").readlink())

    def moves(name: str) -> Any:
        def move(source: Any, target: Any, **named: Any) -> None:
            plain[name](source, target, **named)
            note("named", Path(target))

        return move

    monkeypatch.setattr(os, "fsync", fsync)
    for name in ("rename", "replace"):
        monkeypatch.setattr(os, name, moves(name))
    return done
