import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]


def check(tree: Path) -> "subprocess.CompletedProcess[str]":
    script = tree / "scripts" / "generate_proto.py"
    return subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for part in ("scripts", "proto", "trainer/diloco/wire/v1"):
        shutil.copytree(REPOSITORY / part, tmp_path / part)
    return tmp_path


def test_a_change_of_the_proto_alone_is_found_out(tree: Path) -> None:
    proto = tree / "proto/diloco/wire/v1/sync.proto"
    proto.write_text(proto.read_text().replace("uint32 attempt", "uint64 attempt"))
    result = check(tree)
    assert result.returncode == 1
    assert "trainer/diloco/wire/v1/sync_pb2.py is not what it is made from: run `make proto`" in result.stderr


def test_a_missing_module_is_found_out(tree: Path) -> None:
    (tree / "trainer/diloco/wire/v1/sync_pb2.pyi").unlink()
    result = check(tree)
    assert result.returncode == 1
    assert "sync_pb2.pyi" in result.stderr
