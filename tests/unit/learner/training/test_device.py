import pytest
import torch

from diloco.learner.training.device import DeviceError, choose_device


def test_the_cpu_is_always_there() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device("auto").type in ("cpu", "cuda")


@pytest.mark.parametrize("name", ["gpu", "meta", "cuda:99"])
def test_a_device_that_is_not_there_names_the_flag(name: str) -> None:
    with pytest.raises(DeviceError, match=f"--device: {name} is no"):
        choose_device(name)
