"""A node gets only the layers of an image that it lacks, with digests that match the others."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from testbed.kind.image_transfer import SavedImage

LAYERS = [b"first layer", b"second layer", b"first layer"]


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def saved(folder: Path) -> SavedImage:
    """As `docker save` writes it: a layer that occurs twice is a link the second time, the list comes last."""
    config = json.dumps({"rootfs": {"diff_ids": [digest(layer) for layer in LAYERS]}}).encode()
    members = {"config.json": config, "a/layer.tar": LAYERS[0], "b/layer.tar": LAYERS[1]}
    listed = [{"Config": "config.json", "Layers": ["a/layer.tar", "b/layer.tar", "c/layer.tar"]}]
    with tarfile.open(folder / "image.tar", "w") as archive:
        link = tarfile.TarInfo("c/layer.tar")
        link.type, link.linkname = tarfile.SYMTYPE, "../a/layer.tar"
        archive.addfile(link)
        for name, content in {**members, "manifest.json": json.dumps(listed).encode()}.items():
            header = tarfile.TarInfo(name)
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))
    return SavedImage.read(folder / "image.tar", "localhost/image:1")


def layout(image: SavedImage, known: list[str]) -> dict[str, bytes]:
    out = io.BytesIO()
    image.write(out, known)
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as archive:
        return {name: (archive.extractfile(name) or io.BytesIO()).read() for name in archive.getnames()}


def blob(content: bytes) -> str:
    return f"blobs/{digest(content).replace(':', '/')}"


def test_the_layout_names_the_image_and_leads_to_all_of_it(tmp_path: Path) -> None:
    files = layout(saved(tmp_path), [])
    (entry,) = json.loads(files["index.json"])["manifests"]
    assert entry["annotations"]["io.containerd.image.name"] == "localhost/image:1"
    manifest = json.loads(files[f"blobs/{entry['digest'].replace(':', '/')}"])
    assert [layer["digest"] for layer in manifest["layers"]] == [digest(layer) for layer in LAYERS]
    for part in (manifest["config"], *manifest["layers"]):
        content = files[f"blobs/{part['digest'].replace(':', '/')}"]
        assert (digest(content), len(content)) == (part["digest"], part["size"])


@pytest.mark.parametrize("has", [[], [0], [1], [0, 1]])
def test_layers_that_a_node_has_are_not_sent(tmp_path: Path, has: list[int]) -> None:
    files = layout(saved(tmp_path), [digest(LAYERS[index]) for index in has])
    sent = [index for index in (0, 1) if blob(LAYERS[index]) in files]
    assert sent == [index for index in (0, 1) if index not in has]
