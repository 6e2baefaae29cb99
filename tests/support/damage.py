"""Ways in which a file is damaged."""

from collections.abc import Callable
from pathlib import Path


def flip(path: Path, at: int | None = None) -> None:
    """Change one bit: of this byte, or in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if at is None else at] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    """Take the last bytes away."""
    path.write_bytes(path.read_bytes()[:-3])


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped": flip,
    "cut": cut,
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "nested": lambda path: path.write_text('{"a":' * 50_000),
}
