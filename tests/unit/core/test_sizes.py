import pytest

from diloco.core.codec import CODECS, Codec
from diloco.core.sizes import BLOCK, ENCODINGS, F32


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize("numel", [0, 1, 63, 65, BLOCK, BLOCK + 1, 3 * BLOCK + 257])
def test_each_codec_has_an_encoding_of_its_size(codec: Codec, numel: int) -> None:
    assert ENCODINGS[codec.name].payload_bytes(numel) == codec.payload_bytes(numel)


def test_encodings_stand_from_the_widest_to_the_narrowest() -> None:
    sizes = [encoding.payload_bytes(10**6) for encoding in ENCODINGS.values()]
    assert sizes == sorted(sizes, reverse=True)
    assert list(ENCODINGS) == [codec.name for codec in CODECS]


def test_a_scale_goes_with_each_group_and_blocks_are_whole() -> None:
    int4 = ENCODINGS["Int4"]
    assert int4.payload_bytes(64) == 4 + 32
    assert int4.payload_bytes(65) == 8 + 33
    assert int4.payload_bytes(BLOCK + 1) == int4.payload_bytes(BLOCK) + 4 + 1
    assert F32.payload_bytes(10) == 40


def test_the_grid_is_part_of_every_payload_that_was_ever_kept() -> None:
    assert BLOCK == 524_288
    assert ENCODINGS["Int8"].payload_bytes(BLOCK + 1) == ENCODINGS["Int8"].payload_bytes(BLOCK) + 4 + 1


@pytest.mark.parametrize(
    ("name", "block_bytes"),
    [
        ("None", 4 * 524_288),
        ("BF16", 2 * 524_288),
        ("Int8", 524_288 + 4 * 2048),  # a scale for 256 elements
        ("Int4", 262_144 + 4 * 8192),  # and for 64
    ],
)
def test_a_payload_is_as_long_as_its_blocks(name: str, block_bytes: int) -> None:
    assert [ENCODINGS[name].payload_bytes(blocks * BLOCK) for blocks in (1, 2, 3)] == [
        block_bytes,
        2 * block_bytes,
        3 * block_bytes,
    ]
