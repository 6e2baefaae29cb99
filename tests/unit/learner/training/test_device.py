import pytest
import torch

from diloco.learner.training.device import DeviceError, choose_device


@pytest.mark.parametrize("name", ["gpu", "meta", "cuda:99"])
def test_a_device_that_is_not_there_names_the_flag(name: str) -> None:
    with pytest.raises(DeviceError, match=f"--device: {name} is no"):
        choose_device(name)


@pytest.mark.parametrize(
    ("there", "name", "device"),
    [
        (0, "auto", "cpu"),
        (1, "cpu", "cpu"),
        (1, "auto", "cuda"),
        (0, "cuda", None),
        (1, "cuda", "cuda"),
        (1, "cuda:0", "cuda:0"),
        (1, "cuda:1", None),
        (2, "cuda:1", "cuda:1"),
        (2, "cuda:2", None),
    ],
)
def test_a_cuda_device_must_be_one_of_those_there(
    monkeypatch: pytest.MonkeyPatch, there: int, name: str, device: str | None
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    if device is None:
        with pytest.raises(DeviceError, match=f"{name} is not available; this machine has {there} CUDA devices"):
            choose_device(name)
    else:
        assert choose_device(name) == torch.device(device)
