"""Chooses the device that the inner loop runs on."""

import torch


class DeviceError(ValueError):
    """The requested device does not exist; the text names the flag."""


def choose_device(name: str) -> torch.device:
    """The device of that name (``cpu``, ``cuda``, ``cuda:1``); ``auto`` is CUDA if there is any.

    Raises:
        DeviceError: no such device.
    """
    count = torch.cuda.device_count()
    if name == "auto":
        return torch.device("cuda" if count else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DeviceError(f"--device: {name} is not a device; use auto, cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise DeviceError(f"--device: {name} is not supported; use auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= count:
        raise DeviceError(f"--device: {name} is not available; this machine has {count} CUDA devices")
    return device
