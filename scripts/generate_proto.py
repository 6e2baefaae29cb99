"""Generates the wire's message classes and their types from proto/ into trainer/diloco/wire/v1/.

    python scripts/generate_proto.py            # write them
    python scripts/generate_proto.py --check    # fail if they are not what proto/ says

No gRPC stubs: bulk messages are raw bytes, so the wire package names its methods itself.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PROTO = Path("diloco/wire/v1/sync.proto")
GENERATED = tuple(PROTO.with_name(name) for name in ("sync_pb2.py", "sync_pb2.pyi"))
COMMAND = "make proto"


def generate(into: Path) -> None:
    """Write the generated files below ``into``, at the package path that the proto file has below proto/."""
    # protoc finds the plugin for types on PATH, which has the virtual environment's programs only when it is activated.
    plugin = Path(sys.executable).parent / "protoc-gen-mypy"
    arguments = ["-I", "proto", f"--python_out={into}", f"--mypy_out={into}", f"--plugin=protoc-gen-mypy={plugin}"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *arguments, str(PROTO)], cwd=REPOSITORY, check=True)


def differing() -> list[str]:
    """Names of the generated files that are missing or not what proto/ says."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        return [str(name) for name in GENERATED if not _same(REPOSITORY / "trainer" / name, Path(folder) / name)]


def _same(committed: Path, made: Path) -> bool:
    return committed.is_file() and committed.read_bytes() == made.read_bytes()


def main(arguments: list[str]) -> int:
    """Write or check the files; the exit code."""
    if arguments not in ([], ["--check"]):
        print("usage: python scripts/generate_proto.py [--check]", file=sys.stderr)
        return 2
    if not arguments:
        generate(REPOSITORY / "trainer")
        return 0
    names = differing()
    for name in names:
        print(f"trainer/{name} is not what proto/ says: run `{COMMAND}`", file=sys.stderr)
    return 1 if names else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
