import pytest
import torch

from diloco.core.merge.running_mean import running_mean


def test_it_is_the_mean_of_all_versions_and_changes_none() -> None:
    versions = [torch.randn(1000, generator=torch.Generator().manual_seed(seed)) for seed in range(9)]
    kept = [one.clone() for one in versions]
    mean: torch.Tensor | None = None
    for count, version in enumerate(versions, start=1):
        before = None if mean is None else (mean, mean.clone())
        mean = running_mean(mean, version, count)
        assert before is None or torch.equal(*before)
    assert mean is not None
    assert torch.allclose(mean, torch.stack(kept).mean(0), atol=1e-6)
    assert all(map(torch.equal, versions, kept))


def test_the_first_version_is_its_own_mean_and_none_ends_it() -> None:
    version = torch.ones(3)
    assert running_mean(torch.zeros(3), version, 1) is version
    assert running_mean(version, version, 0) is None


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_do_not_change_a_bit(threads: int) -> None:
    values, mean = (torch.randn(200_003, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    expected = mean + (values - mean) * (1 / 7)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = running_mean(mean, values, 7)
    finally:
        torch.set_num_threads(before)
    assert found is not None
    assert torch.equal(found, expected)
