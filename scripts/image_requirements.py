"""Writes what pip is to install into an image, and at which versions: the Dockerfile's one decision.

python scripts/image_requirements.py operator DIRECTORY    # the operator's own dependencies, as tested
python scripts/image_requirements.py trainer DIRECTORY     # all but development's, without what the base image has

Three files appear in DIRECTORY: image-kept.txt, image-requirements.txt and image-constraints.txt. Runs in a bare base
image, before anything is installed, so it needs nothing but Python; run by the Python that the packages are for, it
sees what the base image has.
"""

import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent

KEPT = frozenset({"torch", "numpy"})
"""Built for each other and for the machine's accelerators: never replaced where the base image has them."""
ON_TORCH = frozenset({"accelerate", "peft"})
"""They ask for torch, so beside a base's torch they come without their dependencies, which are all in other lists."""
EXTRAS = ("data", "hf", "operator")


def canonical(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def named(requirement: str) -> str:
    """The canonical name at the beginning of a requirement (PEP 508)."""
    return canonical(re.split(r"[^A-Za-z0-9._-]", requirement.strip(), maxsplit=1)[0])


@dataclass(frozen=True)
class Wanted:
    """Lines for pip, each as in a requirements file."""

    kept: list[str]
    """Requirements that are met without a look at dependencies, by the base image's own packages where it has them."""
    installed: list[str]
    """Requirements that are to be installed."""
    constraints: list[str]
    """Versions for both."""


def wanted(project: Mapping[str, Any], tested: Iterable[str], base: Mapping[str, str], *, everything: bool) -> Wanted:
    """What an image needs beside the packages of its ``base`` (canonical name to version).

    ``project`` is that table of pyproject.toml, ``tested`` the lines of constraints.txt. Without ``everything`` it is
    the operator's image, of which only the list `operator` is used. What the base has of ``KEPT`` is not left to
    pip's resolver, which would also put other versions of what torch itself asks for beside the base's.
    """
    extras = EXTRAS if everything else ("operator",)
    requirements = {line for extra in extras for line in project["optional-dependencies"][extra]}
    if everything:
        requirements |= set(project["dependencies"])
    pinned = {name: f"{name}=={base[name]}" for name in sorted(KEPT & base.keys())}
    kept = pinned.keys() | (ON_TORCH if "torch" in pinned else ())
    return Wanted(
        kept=sorted(line for line in requirements if named(line) in kept),
        installed=sorted(line for line in requirements if named(line) not in kept),
        constraints=[*pinned.values(), *(line for line in tested if named(line) not in pinned)],
    )


def main(arguments: list[str]) -> int:
    """Write the three files; the exit code."""
    if len(arguments) != 2 or arguments[0] not in ("operator", "trainer"):
        print("usage: python scripts/image_requirements.py operator|trainer DIRECTORY", file=sys.stderr)
        return 2
    image, directory = arguments[0], Path(arguments[1])
    project = tomllib.loads((FOLDER / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    tested = (FOLDER / "constraints.txt").read_text(encoding="utf-8").split()
    base = {canonical(one.name): one.version for one in distributions()} if image == "trainer" else {}
    lines = wanted(project, tested, base, everything=image == "trainer")
    _write(directory / "image-kept.txt", lines.kept)
    _write(directory / "image-requirements.txt", lines.installed)
    _write(directory / "image-constraints.txt", lines.constraints)
    return 0


def _write(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
