import pytest

from diloco.core.merge.codec import CODECS
from diloco.core.sizes import BLOCK, ENCODINGS


def test_encodings_are_those_of_the_codecs_the_widest_first() -> None:
    assert list(ENCODINGS) == [codec.name for codec in CODECS] == ["None", "BF16", "Int8", "Int4"]


@pytest.mark.parametrize(
    ("name", "block_bytes", "rest_bytes"),
    [
        ("None", 4 * 524_288, 4 * 257),
        ("BF16", 2 * 524_288, 2 * 257),
        ("Int8", 524_288 + 2 * 2048, 257 + 2 * 2),  # a scale for 256 elements
        ("Int4", 262_144 + 2 * 8192, 129 + 2 * 5),  # and for 64
    ],
)
def test_the_grid_is_part_of_every_payload_that_was_ever_kept(name: str, block_bytes: int, rest_bytes: int) -> None:
    assert BLOCK == 524_288
    sizes = [ENCODINGS[name].payload_bytes(numel) for numel in (BLOCK, 3 * BLOCK, 257, 2 * BLOCK + 257)]
    assert sizes == [block_bytes, 3 * block_bytes, rest_bytes, 2 * block_bytes + rest_bytes]
