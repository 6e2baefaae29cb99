"""The parameters that a new job begins with, from a backup or an exported model (``initFrom`` with type Weights).

Only the parameters that are trained are taken: the job has its own counts, momentum and frozen parameters.
"""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
from torch import nn

from diloco.core.finite_check import problem_with
from diloco.core.fragments import Layout
from diloco.model import ModelError
from diloco.model.export import fill_trained, stored_tensors
from diloco.model.fragments import read_fragment
from diloco.model.huggingface import adapters
from diloco.runtime.files import UnusableFileError
from diloco.runtime.object_store import ObjectStore, StoreError, open_store
from diloco.spec.backup import InitFrom
from diloco.spec.checks import MODEL_ENDING
from diloco.syncer.backup.manifest import BackupManifest, BackupName
from diloco.syncer.backup.restore import (
    bytes_at_most,
    check_files,
    check_layout,
    check_room,
    fetch,
    newest_usable,
    opened,
    unreachable,
)
from diloco.syncer.disk.fragment_file import file_of, read_fragment_file
from diloco.syncer.errors import SyncerError

_log = logging.getLogger(__name__)

_MODEL_FILE: Final = "model.safetensors"
_BYTES_A_VALUE: Final = 8
_HEADER_BYTES: Final = 64 << 20
_CONFIG_BYTES: Final = 1 << 20


def initial_parameters(
    begins: InitFrom,
    module: nn.Module,
    layout: Layout,
    scratch: Path,
    open_folder: Callable[..., ObjectStore] = open_store,
) -> list[torch.Tensor]:
    """The parameters of every fragment, f32, flat.

    The trained parameters of ``module``, the job's model built with values, are overwritten. Files are read into
    ``scratch``, which is deleted afterwards.

    Raises:
        SyncerError: there are none, they are of another model, or the store does not answer.
        OSError: the disk is full.
    """
    is_file = begins.url.endswith(MODEL_ENDING)
    folder = _folder_and_file(begins.url)[0] if is_file else begins.url
    store = opened(begins.model_copy(update={"url": folder}), open_folder)
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        if is_file:
            found = _exported_file(begins, store, module, layout, scratch)
        else:
            found = _newest(begins, store, module, layout, scratch)
    except StoreError as error:
        raise unreachable(error) from None
    except (ModelError, UnusableFileError) as error:
        raise SyncerError(f"spec.initFrom.url: {begins.url}: {error}") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return found


def _newest(
    begins: InitFrom, store: ObjectStore, module: nn.Module, layout: Layout, scratch: Path
) -> list[torch.Tensor]:
    def use(name: BackupName, manifest: BackupManifest) -> list[torch.Tensor]:
        if not name.is_model:
            return _of_checkpoint(begins, store, manifest, layout, scratch)
        check_files(manifest, {_MODEL_FILE: _model_bytes(module)})
        check_room(scratch, manifest.size_bytes)
        fetch(store, manifest, _MODEL_FILE, scratch / _MODEL_FILE)
        return _of_model(scratch / _MODEL_FILE, module, layout)

    return newest_usable(store, begins, None, use)


def _folder_and_file(url: str) -> tuple[str, str]:
    folder, slash, file = url.rpartition("/")
    return (folder or slash or "."), file


def _exported_file(
    begins: InitFrom, store: ObjectStore, module: nn.Module, layout: Layout, scratch: Path
) -> list[torch.Tensor]:
    target, file, most = scratch / _MODEL_FILE, _folder_and_file(begins.url)[1], _model_bytes(module)
    size = store.size(file)
    if size > most:
        text = f"{begins.url} has {size} bytes; with this job's model it has {most} at most"
        raise SyncerError(f"spec.initFrom.url: {text}; use a model of this shape")
    check_room(target.parent, size)
    if file == adapters.WEIGHTS:
        store.download(file, scratch / file, size)
        store.download(adapters.CONFIG, scratch / adapters.CONFIG, min(store.size(adapters.CONFIG), _CONFIG_BYTES))
        adapters.fill_adapters(scratch, module)
        found = _parameters(module, layout)
    else:
        store.download(file, target, size)
        found = _of_model(target, module, layout)
    _log.info("begins from the parameters in %s", begins.url)
    return found


def _of_model(path: Path, module: nn.Module, layout: Layout) -> list[torch.Tensor]:
    fill_trained(path, module)
    return _parameters(module, layout)


def _parameters(module: nn.Module, layout: Layout) -> list[torch.Tensor]:
    found = []
    for fragment in layout.fragments:
        parameters = torch.empty(fragment.numel, dtype=torch.float32)
        read_fragment(module, fragment, parameters)
        found.append(parameters)
    return _checked(found)


def _of_checkpoint(
    begins: InitFrom, store: ObjectStore, manifest: BackupManifest, layout: Layout, scratch: Path
) -> list[torch.Tensor]:
    check_layout(begins, manifest, layout)
    check_files(manifest, bytes_at_most(layout))
    files = [file_of(fragment.index) for fragment in layout.fragments]
    check_room(scratch, max(manifest.files[file].size_bytes for file in files))
    found = []
    for fragment, file in zip(layout.fragments, files, strict=True):
        fetch(store, manifest, file, scratch / file)
        tensors = read_fragment_file(scratch / file, manifest.files[file].sha256, fragment.numel)
        (scratch / file).unlink()
        if tensors.residual is not None:  # what the encoding of updates has left over is part of the model
            tensors.parameters.add_(tensors.residual)
        found.append(tensors.parameters)
    return _checked(found)


def _checked(parameters: list[torch.Tensor]) -> list[torch.Tensor]:
    for index, values in enumerate(parameters):
        if problem := problem_with(values):
            raise UnusableFileError(f"fragment {index}: {problem}; use another one")
    return parameters


def _model_bytes(module: nn.Module) -> int:
    """Most bytes of an exported model: all that it stores, in any type of number."""
    values: int = sum(tensor.numel() for tensor in stored_tensors(module).values())
    return _BYTES_A_VALUE * values + _HEADER_BYTES
