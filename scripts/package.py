"""Packs what a release publishes besides its images: the wheel, the source archive and the chart (`make package`).

    python scripts/package.py
    python scripts/package.py --tag v0.1.0 --registry REGISTRY/TEAM --operator-digest sha256:...

With a registry, the packed chart names the images there, by digest where one is given, so that `helm install` needs no
value. Without one it is the chart as it stands.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from diloco import __version__
from diloco.runtime.build import PACKED
from testbed.kind import tools
from testbed.kind.cache import Cache
from testbed.kind.commands import CommandFailedError, Unavailable, run

REPOSITORY = Path(__file__).resolve().parents[1]
CHART = Path("charts/diloco-operator")
IMAGES = ("operator", "trainer")
SOURCES, FILES = ("trainer", "operator"), ("pyproject.toml", "README.md", "LICENSE")
"""What the Python package is built from."""
_REGISTRY = re.compile(r"[a-z0-9][a-z0-9.-]*(:\d{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class WrongFlagError(ValueError):
    """A flag's value cannot be used; the text names the flag, the value and what is allowed."""


def main(arguments: Sequence[str]) -> int:
    """Pack everything into a folder; the exit code."""
    parser = argparse.ArgumentParser(prog="package.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--into", type=Path, default=REPOSITORY / "build" / "package", help="default: build/package")
    parser.add_argument("--tag", help="the tag that is released: must be v and the version")
    parser.add_argument("--registry", help="where the images are, with its path: REGISTRY/TEAM")
    for image in IMAGES:
        parser.add_argument(f"--{image}-digest", help=f"of the {image}'s image there, sha256:...")
    options = parser.parse_args(arguments)
    digests = {image: found for image in IMAGES if (found := getattr(options, f"{image}_digest"))}
    try:
        check(options.tag, options.registry, digests)
        shutil.rmtree(options.into, ignore_errors=True)
        options.into.mkdir(parents=True)
        pack_chart(tools.helm(Cache.of_user()), options.into, options.registry, digests)
        pack_python(options.into)
    except (WrongFlagError, Unavailable, CommandFailedError) as error:
        print(error, file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        return error.returncode  # it has said why
    for path in sorted(options.into.iterdir()):
        print(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
    return 0


def check(tag: str | None, registry: str | None, digests: dict[str, str]) -> None:
    """Refuse what would publish a wrong chart.

    Raises:
        WrongFlagError: One of the values.
    """
    if tag is not None and tag != f"v{__version__}":
        raise WrongFlagError(f"--tag: {tag} is not the version in trainer/diloco/__init__.py; use v{__version__}")
    if registry is not None and not _REGISTRY.fullmatch(registry):
        raise WrongFlagError(f"--registry: {registry} is no place of images; use HOST or HOST/PATH in lower case")
    for image, digest in digests.items():
        if registry is None:
            raise WrongFlagError(f"--{image}-digest: {digest} is of an image in no registry; use it with --registry")
        if not _DIGEST.fullmatch(digest):
            raise WrongFlagError(f"--{image}-digest: {digest} is no digest; use sha256: and 64 hexadecimal digits")


def pack_chart(helm: Path, into: Path, registry: str | None, digests: dict[str, str]) -> None:
    """Pack the chart, whose default images are those of a registry, if there is one.

    Raises:
        CommandFailedError: helm refuses it.
    """
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / CHART.name
        shutil.copytree(REPOSITORY / CHART, copy)
        if registry is not None:
            values = copy / "values.yaml"
            values.write_text(with_images(values.read_text(encoding="utf-8"), registry, digests), encoding="utf-8")
        run(helm, "package", copy, "--destination", into)


def with_images(values: str, registry: str, digests: dict[str, str]) -> str:
    """The text of values.yaml, comments and all, with the images of a registry."""
    for image in IMAGES:
        # The repository's line, and the digest's a few lines later, before the next image.
        name = f"diloco-{image}"
        before, found, after = values.partition(f"repository: {name}\n")
        assert found, f"values.yaml has no image {name}"
        after = after.replace('digest: ""', f'digest: "{digests.get(image, "")}"', 1)
        values = f"{before}repository: {registry}/{name}\n{after}"
    return values


def pack_python(into: Path) -> None:
    """Build the source archive, and the wheel from it, so that the archive is known to be whole. Both name the commit.

    Raises:
        CommandFailedError: this is no checkout.
    """
    # With a mark if anything in the checkout is not committed.
    commit = run("git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*", cwd=REPOSITORY)
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "sources"
        unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
        for source in SOURCES:
            shutil.copytree(REPOSITORY / source, copy / source, ignore=unwanted)
        for file in FILES:
            shutil.copy(REPOSITORY / file, copy)
        (copy / "trainer/diloco" / PACKED).write_text(commit, encoding="ascii")
        command = (sys.executable, "-m", "build", "--outdir", str(into), str(copy))
        subprocess.run(command, check=True, stdout=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
