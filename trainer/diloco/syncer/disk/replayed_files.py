"""Holds what a run has left on disk against what a replay of its tapes computes.

A checkpoint is compared at the point of the replay that has its versions: with the digests on the tape, and if merges
are redone also with momentum and residuals, bit by bit. What shows that a run went on after its tape is named, and so
is every file that nothing was compared with.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from diloco.core.fragments import Layout
from diloco.runtime.files import UnusableFileError, open_regular, sha256_file
from diloco.runtime.json_text import JsonError, parse_json
from diloco.spec.status.curves import FILE
from diloco.syncer.disk.checkpoint import (
    CheckpointManifest,
    LoadedCheckpoint,
    load_checkpoint,
    read_checkpoint_manifest,
)
from diloco.syncer.disk.checkpoint_names import checkpoint_names
from diloco.syncer.disk.fragment_file import SUFFIX, file_of
from diloco.syncer.errors import SyncerError
from diloco.syncer.store import FragmentStore, digest_of

MODEL: Final = "model.safetensors"
_LINE_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Computed:
    """The global model at one point of a replay."""

    versions: tuple[int, ...]
    tokens: tuple[int, ...]
    """Merged into each fragment."""
    digests: Mapping[int, str]
    """By fragment: digest of its f32 bytes, hexadecimal, as far as it is known."""
    store: FragmentStore | None
    """With momentum and residuals; None: merges are not redone."""


class ReplayedFiles:
    """The files in the directory of a run, or of a syncer."""

    def __init__(self, directory: Path, root: Path) -> None:
        """``root``: the syncer's directory, which ``directory`` is or holds."""
        self._directory, self._root = directory, root
        self._folder = root / "checkpoints"
        self._manifests: dict[str, CheckpointManifest] = {}
        self._compared: set[str] = set()
        self._other_tokens: set[str] = set()
        self.checked: set[Path] = set()
        """Files whose content is what the replay says."""
        self._parameters_alone: set[Path] = set()
        """Files of fragments whose parameters are, and whose momentum is not known."""
        self.problems: list[tuple[Path, str]] = []
        for name in checkpoint_names(self._folder):
            try:
                self._manifests[name] = read_checkpoint_manifest(self._folder / name)
            except (UnusableFileError, SyncerError) as error:
                self._problem(self._folder / name, error)

    def compare(self, epoch: int, job: str, layout: Layout, now: Computed) -> None:
        """Compare the checkpoints that an epoch wrote at this point."""
        for name, manifest in self._manifests.items():
            if (manifest.epoch, manifest.versions) != (epoch, now.versions) or name in self._compared:
                continue
            # What was withheld is counted between two merges, so the checkpoint may be that of a later event.
            if manifest.engine.get("fragment_tokens") != list(now.tokens):
                self._other_tokens.add(name)
                continue
            self._compared.add(name)
            folder = self._folder / name
            try:
                loaded = load_checkpoint(self._folder, name, layout, job)
            except (UnusableFileError, SyncerError) as error:
                self._problem(folder, error)
            else:
                self._compare(folder, loaded, now)

    def went_on(self, epoch: int, versions: tuple[int, ...]) -> str:
        """What shows that an epoch did not end with these versions; empty: nothing does."""
        for where, there in self._seen(epoch):
            for fragment, version in there.items():
                if fragment < len(versions) and version > versions[fragment]:
                    return f"version {version} of fragment {fragment} ({where})"
        return ""

    def never_met(self, epoch: int, first: tuple[int, ...]) -> None:
        """After the replay of an epoch from versions ``first`` on: its checkpoints have all been compared."""
        for name, manifest in self._manifests.items():
            inside = all(begun <= version for begun, version in zip(first, manifest.versions, strict=False))
            if manifest.epoch == epoch and inside and name not in self._compared:
                text = "has versions of the fragments that were never there together"
                if name in self._other_tokens:
                    text = "has other merged tokens than the replay"
                self.problems.append((self._folder / name / "manifest.json", text))

    def check_model(self, digest: str) -> None:
        """Compare the exported model, and a run's copy of it, with its SHA-256 on the tape."""
        for path in {self._root / MODEL, self._directory / MODEL}:
            if not path.exists():
                continue
            try:
                same = sha256_file(path) == digest
            except OSError as error:
                self._problem(path, error.strerror or error)
                continue
            if same:
                self.checked.add(path)
            else:
                self.problems.append((path, "is not the model that the syncer exported: it was changed or damaged"))

    def unchecked(self) -> tuple[str, ...]:
        """Every file that was not checked, by its path in the directory; those of other processes by their folder.

        Files of fragments of which nothing but the parameters was checked are named together.
        """
        named = {path for path, _ in self.problems}
        found: Counter[str] = Counter()
        for path in sorted(self._directory.rglob("*")):
            if path.is_file() and path not in self.checked and named.isdisjoint((path, *path.parents)):
                *folders, name = path.relative_to(self._directory).parts
                if path in self._parameters_alone:
                    found["/".join((*folders, f"*{SUFFIX}: all but their parameters"))] += 1
                    continue
                of_syncer = not folders or folders[0] in ("syncer", "checkpoints", "tape")
                found["/".join((*folders, name)) if of_syncer and "payloads" not in folders else f"{folders[0]}/"] += 1
        return tuple(f"{name} ({count} files)" if name.endswith("/") else name for name, count in found.items())

    def _compare(self, folder: Path, loaded: LoadedCheckpoint, now: Computed) -> None:
        self.checked.add(folder / "manifest.json")
        for fragment, there in enumerate(loaded.fragments):
            path = folder / file_of(fragment)
            digest = now.digests.get(fragment)
            same = digest is None or digest_of(there.parameters).hex() == digest
            if now.store is not None:
                same &= torch.equal(there.momentum, now.store.momentum(fragment))
                same &= _equal(there.residual, now.store.residual(fragment))
                same &= _equal(there.mean, now.store.mean(fragment))
            if not same:
                text = f"fragment {fragment} at version {now.versions[fragment]} is not what the replay computes"
                self.problems.append((path, text))
            elif now.store is not None:
                self.checked.add(path)
            elif digest is not None:
                self._parameters_alone.add(path)

    def _seen(self, epoch: int) -> Iterator[tuple[str, dict[int, int]]]:
        """What an epoch has written of its fragments: where, and by fragment a version."""
        for name, manifest in self._manifests.items():
            if manifest.epoch == epoch:
                yield f"checkpoints/{name}", dict(enumerate(manifest.versions))
        try:
            with open_regular(self._root / FILE) as file:
                while line := file.readline(_LINE_BYTES):
                    if there := _versions_in(line, epoch):
                        yield FILE, there
        except OSError:
            return

    def _problem(self, path: Path, error: object) -> None:
        where, separator, text = str(error).partition(": ")
        named = separator and where.startswith(str(path))  # the file in a folder
        self.problems.append((Path(where), text) if named else (path, str(error)))


def _versions_in(line: bytes, epoch: int) -> dict[int, int]:
    """By fragment, its version in a row of the curves, if the epoch wrote it."""
    try:
        row = parse_json(line)
        if row["epoch"] != epoch:
            return {}
        return {int(fragment): int(one["version"]) for fragment, one in row["fragments"].items()}
    except (AttributeError, JsonError, KeyError, TypeError, ValueError):
        return {}  # cut off or damaged; nothing depends on a row


def _equal(there: torch.Tensor | None, computed: torch.Tensor | None) -> bool:
    if there is None or computed is None:
        return there is computed
    return torch.equal(there, computed)
