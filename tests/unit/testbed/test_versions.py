from pathlib import Path

import pytest

from testbed.kind.tools import users
from testbed.kind.versions import HELM_ALLOWED, Version, version_in


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("kind v0.33.0 go1.26.8 linux/amd64", (0, 33, 0)),
        ("v3.22.0+gabcdef", (3, 22, 0)),
        ("Client Version: v1.36.4-vendor\nKustomize Version: v5.8.1", (1, 36, 4)),
        ("go1.26.8", None),
        ("no such thing", None),
    ],
)
def test_a_version_is_found_in_what_a_program_says(text: str, version: Version | None) -> None:
    assert version_in(text) == version


@pytest.mark.parametrize(
    ("script", "taken"),
    [("echo v3.20.1", True), ("echo v2.17.0", False), ("echo broken; exit 1", False), ("echo what?", False)],
)
def test_a_program_on_path_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, taken: bool) -> None:
    program = tmp_path / "helm"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert users("helm", ("version",), HELM_ALLOWED) == (program if taken else None)
