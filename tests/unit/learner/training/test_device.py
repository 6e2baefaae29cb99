import pytest
import torch
from torch import nn

from diloco.learner.training.device import DeviceError, choose_device, flops_of_token, peak_flops
from tests.support.small_job import small_job


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


@pytest.mark.parametrize(
    ("there", "name", "device"),
    [(0, "auto", "cpu"), (2, "auto", "cuda:1"), (2, "cuda", "cuda:1"), (2, "cuda:0", "cuda:0"), (1, "auto", None)],
)
def test_each_process_of_a_learner_has_a_cuda_device_of_its_own(
    monkeypatch: pytest.MonkeyPatch, there: int, name: str, device: str | None
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    if device is None:
        with pytest.raises(DeviceError, match="cuda:1 is not available; this machine has 1 CUDA devices"):
            choose_device(name, 1)
    else:
        assert choose_device(name, 1) == torch.device(device)


@pytest.mark.parametrize(
    ("name", "precision", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "BF16", 989e12),
        ("NVIDIA H100 80GB HBM3", "F32", None),
        ("NVIDIA A100-SXM4-80GB", "BF16", 312e12),
        ("NVIDIA L40", "BF16", None),
    ],
)
def test_the_peak_of_a_device_is_told_where_it_is_known(
    monkeypatch: pytest.MonkeyPatch, name: str, precision: str, peak: float | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    assert peak_flops(torch.device("cuda"), precision) == peak
    assert peak_flops(torch.device("cpu"), precision) is None


def test_frozen_parameters_cost_what_the_passes_through_them_do() -> None:
    module = nn.ModuleList([nn.Linear(2, 3, bias=False), nn.Linear(3, 5, bias=False), nn.Linear(5, 7, bias=False)])
    for layers, operations in (((), 6 * 6 + 6 * 15 + 6 * 35), ((0,), 2 * 6 + 6 * 15 + 6 * 35), ((0, 2), 12 + 90 + 140)):
        module.requires_grad_()
        for layer in layers:
            module[layer].requires_grad_(requires_grad=False)
        assert flops_of_token(small_job(), module) == operations
    task = {"entrypoint": "tests.support.tasks:Images"}
    assert flops_of_token(small_job(task=task, data={}, model={"entrypoint": "mine:make"}), module) == 0
