import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from diloco.learner.training.devices.device import (
    DeviceError,
    choose_device,
    computes_in_bf16,
    computing,
    device_name,
    peak_flops,
    set_up,
)
from diloco.spec.training import Precision
from tests.support.small_job import small_job


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., torch.device]]:
    """Makes torch tell of a CUDA device of this name."""

    def named(name: str, *, bf16: bool = True) -> torch.device:
        computes_in_bf16.cache_clear()
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: bf16)
        monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
        monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
        return torch.device("cuda")

    before = torch.get_float32_matmul_precision()
    yield named
    torch.set_float32_matmul_precision(before)
    computes_in_bf16.cache_clear()


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
        ("NVIDIA H100 80GB HBM3", "Auto", 989e12),
        ("NVIDIA A100-SXM4-80GB", "BF16", 312e12),
        ("NVIDIA L40", "BF16", None),
    ],
)
def test_the_peak_of_a_device_is_told_where_it_is_known(
    cuda: Callable[..., torch.device], name: str, precision: Precision, peak: float | None
) -> None:
    assert peak_flops(cuda(name), precision) == peak
    assert peak_flops(torch.device("cpu"), precision) is None


@pytest.mark.parametrize("precision", ["Auto", "F32", "BF16"])
def test_a_step_is_in_bf16_where_the_device_has_it_or_the_manifest_says_so(
    cuda: Callable[..., torch.device], precision: Precision
) -> None:
    assert computes_in_bf16(precision, cuda("NVIDIA H100 80GB HBM3")) == (precision != "F32")
    assert computes_in_bf16(precision, torch.device("cpu")) == (precision == "BF16")
    assert computes_in_bf16(precision, cuda("Tesla V100-SXM2-16GB", bf16=False)) == (precision == "BF16")


def test_what_a_step_is_computed_in_is_told_in_words(cuda: Callable[..., torch.device]) -> None:
    job, cpu = small_job().training, torch.device("cpu")
    assert computing(job, cpu) == "F32"
    fast = job.model_copy(update={"compile": True, "activation_checkpointing": "Selective"})
    assert computing(fast, cuda("NVIDIA H100 80GB HBM3")) == "BF16, compiled, activationCheckpointing Selective"
    assert computing(job, cuda("Tesla V100-SXM2-16GB", bf16=False)) == "F32 (TF32)"
    assert [device_name(one) for one in (cpu, torch.device("cuda"))] == ["cpu", "Tesla V100-SXM2-16GB"]


def test_a_device_without_bf16_is_told_in_one_line(cuda: Callable[..., torch.device], tmp_path: Path) -> None:
    device, training = cuda("Tesla V100-SXM2-16GB", bf16=False), small_job().training
    with pytest.raises(DeviceError, match=r"^training.precision: BF16 is not what Tesla V100.* use Auto or F32$"):
        set_up(training.model_copy(update={"precision": "BF16"}), device, tmp_path)


def test_matrices_of_f32_are_in_tf32_on_a_device_alone(
    cuda: Callable[..., torch.device], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setenv("DILOCO_CACHE", str(tmp_path))
    set_up(small_job().training, torch.device("cpu"), tmp_path)
    assert torch.get_float32_matmul_precision() == "highest"
    set_up(small_job().training, cuda("NVIDIA H100 80GB HBM3"), tmp_path)
    assert torch.get_float32_matmul_precision() == "high"
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "compiled")


def test_what_names_no_device_uses_the_learners_own(
    cuda: Callable[..., torch.device], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda("NVIDIA H100 80GB HBM3")
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    set_up(small_job().training, torch.device("cuda:1"), tmp_path)
    assert chosen == [1]
