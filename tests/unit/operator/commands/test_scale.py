import pytest

from diloco_operator.commands.scale import wanted_sizes
from diloco_operator.commands.shared import CommandError


def test_each_pool_has_its_number() -> None:
    assert wanted_sizes(["us-east/new=0", "us-west/old=8"]) == {"us-east/new": 0, "us-west/old": 8}


@pytest.mark.parametrize("size", ["us-west=8", "us-west/old", "us-west/old=", "us-west/old=-1", "a/b/c=1", "a/b=٣"])
def test_anything_else_is_one_line(size: str) -> None:
    with pytest.raises(CommandError, match="is not a pool and a number; use for example us-west/old=8"):
        wanted_sizes([size])


def test_a_pool_is_named_once() -> None:
    with pytest.raises(CommandError, match="a/b is given twice"):
        wanted_sizes(["a/b=1", "a/b=2"])
