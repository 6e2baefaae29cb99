"""Generates the wire's message classes and their types from proto/ into trainer/diloco/wire/v1/.

    python scripts/generate_proto.py            # write them
    python scripts/generate_proto.py --check    # fail if they are not what proto/ says

No gRPC stubs: bulk messages are raw bytes, so the wire package names its methods itself.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from generated import REPOSITORY, main

PROTO = Path("diloco/wire/v1/sync.proto")
GENERATED = tuple(PROTO.with_name(name) for name in ("sync_pb2.py", "sync_pb2.pyi"))
COMMAND = "make proto"


def generated() -> dict[Path, str]:
    """Path and content of every file, at the package path that the proto file has below proto/."""
    # protoc finds the plugin for types on PATH, which has the virtual environment's programs only when it is activated.
    plugin = Path(sys.executable).parent / "protoc-gen-mypy"
    with tempfile.TemporaryDirectory() as into:
        arguments = ["-I", "proto", f"--python_out={into}", f"--mypy_out={into}", f"--plugin=protoc-gen-mypy={plugin}"]
        subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *arguments, str(PROTO)], cwd=REPOSITORY, check=True)
        return {REPOSITORY / "trainer" / name: (Path(into) / name).read_text(encoding="utf-8") for name in GENERATED}


if __name__ == "__main__":
    sys.exit(main(generated, COMMAND))
