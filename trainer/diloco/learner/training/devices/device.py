"""Chooses the device that the inner loop runs on, and what it computes in."""

import os
from functools import cache
from pathlib import Path
from typing import Final

import torch

from diloco.runtime.cache import cache_folder
from diloco.spec.training import Precision, TrainingSpec

_PEAKS: Final = {"B200": 2250e12, "H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12}
"""Dense bf16 operations a second by a part of the device's name, from NVIDIA's data sheets (SXM)."""


class DeviceError(ValueError):
    """The requested device does not exist; the text names the flag."""


def peak_flops(device: torch.device, precision: Precision, processes: int = 1) -> float | None:
    """Most operations a second in BF16, of a device like ``device`` for each of a learner's ``processes``.

    None if it computes in F32, or is not known.
    """
    if device.type != "cuda" or not computes_in_bf16(precision, device):
        return None
    name = torch.cuda.get_device_name(device)
    return next((processes * peak for part, peak in _PEAKS.items() if part in name.replace("-", " ").split()), None)


@cache
def computes_in_bf16(precision: Precision, device: torch.device) -> bool:
    """Whether a step's forward and backward pass are in BF16 there, else in F32; ``precision``: the manifest's."""
    return precision == "BF16" or (precision == "Auto" and _has_bf16(device))


def computing(training: TrainingSpec, device: torch.device) -> str:
    """What a step is computed in, in words: ``BF16, compiled, activationCheckpointing Selective``."""
    words = ["BF16" if computes_in_bf16(training.precision, device) else "F32"]
    if device.type == "cuda" and words == ["F32"]:
        words = ["F32 (TF32)"]
    if training.compile:
        words.append("compiled")
    if training.activation_checkpointing != "None":
        words.append(f"activationCheckpointing {training.activation_checkpointing}")
    return ", ".join(words)


def device_name(device: torch.device) -> str:
    """Of its kind: ``NVIDIA H100 80GB HBM3``, ``cpu``."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def set_up(training: TrainingSpec, device: torch.device, folder: Path) -> None:
    """For the whole process: matrices of f32 are multiplied in TF32, and what is compiled is kept in ``folder``.

    Raises:
        DeviceError: the device cannot compute in what the manifest asks for.
    """
    if training.precision == "BF16" and device.type == "cuda" and not _has_bf16(device):
        raise DeviceError(
            f"training.precision: BF16 is not what {torch.cuda.get_device_name(device)} computes in; use Auto or F32"
        )
    if device.type == "cuda":
        torch.cuda.set_device(device.index or 0)  # what names no device, in torch or a user's code, uses this one
        torch.set_float32_matmul_precision("high")
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder(folder) / "compiled"))


def _has_bf16(device: torch.device) -> bool:
    if device.type != "cuda":
        return False
    with torch.cuda.device(device):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))


def choose_device(name: str, process: int | None = None) -> torch.device:
    """The device of that name (``cpu``, ``cuda``, ``cuda:1``); ``auto`` is CUDA if there is any.

    ``process``: of several on this machine, each of which gets a CUDA device of its own.

    Raises:
        DeviceError: no such device.
    """
    count = torch.cuda.device_count()
    if name == "auto":
        name = "cuda" if count else "cpu"
    if name == "cuda" and process is not None:
        name = f"cuda:{process}"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DeviceError(f"--device: {name} is not a device; use auto, cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise DeviceError(f"--device: {name} is not supported; use auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= count:
        raise DeviceError(f"--device: {name} is not available; this machine has {count} CUDA devices")
    return device
