import pytest

from diloco.core.merge.codecs import CODECS
from diloco.core.sizes import BLOCK, ENCODINGS, encoding_of


def test_encodings_are_those_of_the_codecs_the_widest_first() -> None:
    assert list(ENCODINGS) == [codec.name for codec in CODECS] == ["None", "BF16", "Int8", "Int4", "TopK"]


@pytest.mark.parametrize(
    ("name", "block_bytes", "rest_bytes"),
    [
        ("None", 4 * 524_288, 4 * 257),
        ("BF16", 2 * 524_288, 2 * 257),
        ("Int8", 524_288 + 2 * 2048, 257 + 2 * 2),  # a scale for 256 elements
        ("Int4", 262_144 + 2 * 8192, 129 + 2 * 5),  # and for 64
        ("TopK", 128 * (4 + 64 * 14 // 8), 4 + 9),  # two scales for 4096, of which 64 are sent in 14 bits; 5 of 257
    ],
)
def test_the_grid_is_part_of_every_payload_that_was_ever_kept(name: str, block_bytes: int, rest_bytes: int) -> None:
    assert BLOCK == 524_288
    sizes = [ENCODINGS[name].payload_bytes(numel) for numel in (BLOCK, 3 * BLOCK, 257, 2 * BLOCK + 257)]
    assert sizes == [block_bytes, 3 * block_bytes, rest_bytes, 2 * block_bytes + rest_bytes]


@pytest.mark.parametrize(
    ("density", "kept", "rest"), [(None, 64, 5), (1 / 128, 32, 3), (0.02, 82, 6), (1 / 4, 1024, 65)]
)
def test_the_density_decides_how_many_values_top_k_sends(density: float | None, kept: int, rest: int) -> None:
    encoding = encoding_of("TopK", density)
    assert (encoding.sent(4096), encoding.sent(2 * 4096 + 257), encoding.sent(1)) == (kept, 2 * kept + rest, 1)
    assert encoding.payload_bytes(4096 + 257) == 8 + -(-14 * (kept + rest) // 8)
    assert encoding_of("Int4", density) is ENCODINGS["Int4"]
