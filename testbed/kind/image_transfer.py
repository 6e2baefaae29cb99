"""Gives an image of the engine to nodes, but only those layers that a node does not have.

`kind load` sends whole images: with torch in one that is gigabytes for each changed line of code. Here the image is
sent as an OCI image layout (https://github.com/opencontainers/image-spec, image-layout.md) without the blobs that the
node's containerd lists.
"""

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from testbed.kind.commands import CommandFailedError, environment, run
from testbed.kind.digests import digest_of

_CTR = ("ctr", "-n", "k8s.io")
UNPACK = "--snapshotter=overlayfs"
_IMPORT = ("images", "import", "--all-platforms", "--digests", UNPACK, "-")
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Layer:
    """A layer of a saved image."""

    member: str
    """Where in the archive."""
    descriptor: dict[str, Any]

    @property
    def digest(self) -> str:
        return str(self.descriptor["digest"])


@dataclass(frozen=True)
class SavedImage:
    """An image as `docker save` writes it."""

    path: Path
    name: str
    config: bytes
    layers: tuple[Layer, ...]

    @classmethod
    def read(cls, path: Path, name: str) -> "SavedImage":
        with tarfile.open(path) as archive:
            (entry,) = (each for each in json.loads(_content(archive, "manifest.json")) if name in each["RepoTags"])
            config = _content(archive, entry["Config"])
            # A layer that is not compressed is called by the digest of its content, which the configuration has.
            diff_ids = json.loads(config)["rootfs"]["diff_ids"]
            layers = [_layer(archive, *pair) for pair in zip(entry["Layers"], diff_ids, strict=True)]
        return cls(path, name, config, tuple(layers))

    def write(self, out: IO[bytes], known: Iterable[str]) -> None:
        """An image layout of it, without the blobs that are ``known``."""
        have = set(known)
        descriptors = [layer.descriptor for layer in self.layers]
        manifest = _json(
            {
                "schemaVersion": 2,
                "mediaType": _MANIFEST,
                "config": _descriptor(_CONFIG, self.config),
                "layers": descriptors,
            }
        )
        entry = _descriptor(_MANIFEST, manifest) | {"annotations": {"io.containerd.image.name": self.name}}
        with tarfile.open(fileobj=out, mode="w|") as layout, tarfile.open(self.path) as archive:
            _add(layout, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
            _add(layout, "index.json", _json({"schemaVersion": 2, "manifests": [entry]}))
            for blob in (manifest, self.config):
                _add(layout, _path(_digest(blob)), blob)
            for layer in self.layers:
                if layer.digest not in have:
                    have.add(layer.digest)
                    header = tarfile.TarInfo(_path(layer.digest))
                    header.size = layer.descriptor["size"]
                    layout.addfile(header, archive.extractfile(layer.member))


def give(names: Sequence[str], nodes: Iterable[str], folder: Path) -> None:
    """Give the images ``names`` to ``nodes``. They must be full names, with what stands for a registry.

    Args:
        names: The images.
        nodes: Each node is sent what it lacks of them.
        folder: Keeps the saved images until others are saved: the next cluster is given the same.

    Raises:
        CommandFailedError: A node does not take it.
    """
    path = folder / f"{digest_of(dict.fromkeys(names, b''))}.tar"
    if not path.exists():
        for other in folder.iterdir():
            other.unlink()
        unfinished = path.with_suffix(".unfinished")
        run("docker", "save", "--output", unfinished, *names)
        unfinished.rename(path)
    images = [SavedImage.read(path, name) for name in names]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda node: _send(images, node), nodes))


def _send(images: Iterable[SavedImage], node: str) -> None:
    for image in images:
        _send_one(image, node)


def _send_one(image: SavedImage, node: str) -> None:
    known = run("docker", "exec", node, *_CTR, "content", "list", "--quiet").split()
    command = ("docker", "exec", "-i", node, *_CTR, *_IMPORT)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment({})
    ) as process:
        assert process.stdin is not None
        # Where it ends early, what it said tells more than that it could not be written to.
        with suppress(BrokenPipeError):
            image.write(process.stdin, known)
        output, _ = process.communicate()
    if process.returncode != 0:
        raise CommandFailedError(command, process.returncode, output.decode(errors="replace"))


def _layer(archive: tarfile.TarFile, member: str, diff_id: str) -> Layer:
    file = archive.extractfile(member)
    assert file is not None
    compressed = file.read(2) == _GZIP
    size = file.seek(0, io.SEEK_END)
    digest = f"sha256:{member.rpartition('/')[2]}" if compressed else diff_id
    return Layer(member, {"mediaType": _LAYER + ("+gzip" if compressed else ""), "digest": digest, "size": size})


def _content(archive: tarfile.TarFile, member: str) -> bytes:
    file = archive.extractfile(member)
    assert file is not None
    return file.read()


def _add(layout: tarfile.TarFile, name: str, content: bytes) -> None:
    header = tarfile.TarInfo(name)
    header.size = len(content)
    layout.addfile(header, io.BytesIO(content))


def _descriptor(media_type: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest(content), "size": len(content)}


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _path(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _json(value: object) -> bytes:
    return json.dumps(value).encode()
