from collections.abc import Iterator

import pytest


@pytest.fixture
def one_torch_thread() -> Iterator[None]:
    """For models that are far too small for two threads, which would only wait for each other."""
    import torch  # noqa: PLC0415  # most tests here need none

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
