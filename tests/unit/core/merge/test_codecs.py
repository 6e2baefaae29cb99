import math

import pytest
import torch

from diloco.core.merge.codec import Codec, CodecError
from diloco.core.merge.codecs import CODECS, ScaledCodec, codec_named
from diloco.core.sizes import BLOCK, ENCODINGS
from tests.support.fragment_merge import random

every_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
SIZES = [1, 2, 63, 64, 65, 1001, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 333]


def decoded(codec: Codec, payload: torch.Tensor, numel: int) -> torch.Tensor:
    out = torch.full((numel,), math.nan)
    codec.decode_into(payload, 0, out)
    return out


def test_codecs_are_found_by_name() -> None:
    names = ["None", "BF16", "Int8", "Int4", "TopK"]
    assert [codec_named(name).name for name in names] == names
    with pytest.raises(CodecError, match="unknown codec 'Int2'; use None, BF16, Int8, Int4, TopK"):
        codec_named("Int2")


@every_codec
@pytest.mark.parametrize("numel", SIZES)
def test_payloads_have_exactly_the_size_that_is_said(codec: Codec, numel: int) -> None:
    payload = codec.encode(random(numel))
    assert payload.dtype == torch.uint8
    assert payload.shape == (codec.payload_bytes(numel),)
    assert payload.is_contiguous()
    codec.check(payload, numel)


@every_codec
@pytest.mark.parametrize("numel", SIZES)
def test_decoding_block_by_block_is_decoding_at_once(codec: Codec, numel: int) -> None:
    payload = codec.encode(random(numel))
    whole = decoded(codec, payload, numel)
    assert torch.isfinite(whole).all()
    for start in range(0, numel, BLOCK):
        size = min(BLOCK, numel - start)
        part = torch.full((size,), math.nan)
        codec.decode_into(payload, start, part)
        assert torch.equal(part, whole[start : start + size])
        assert torch.equal(codec.decode(payload, start, torch.empty(size)), part)


@every_codec
@pytest.mark.parametrize("numel", [65, BLOCK + 1, 2 * BLOCK + 333])
def test_encoding_block_by_block_is_encoding_at_once(codec: Codec, numel: int) -> None:
    values, payload = random(numel), torch.zeros(codec.payload_bytes(numel), dtype=torch.uint8)
    made = torch.full((numel,), math.nan)
    for start in reversed(range(0, numel, BLOCK)):
        codec.encode_into(values[start : start + BLOCK], payload, start, made[start : start + BLOCK])
    assert torch.equal(payload, codec.encode(values))
    assert torch.equal(made.view(torch.int32), decoded(codec, payload, numel).view(torch.int32))
    with pytest.raises(CodecError, match="not whole blocks of a"):
        codec.encode_into(values[:10], payload, 10, made[:10])


@every_codec
@pytest.mark.parametrize(
    ("start", "size"),
    [(1, BLOCK), (0, 10), (0, BLOCK + 7), (BLOCK - 1, 100), (BLOCK, 8), (-BLOCK, BLOCK), (2 * BLOCK, 1)],
)
def test_elements_off_the_grid_are_refused(codec: Codec, start: int, size: int) -> None:
    payload = codec.encode(random(BLOCK + 100))
    with pytest.raises(CodecError, match="not whole blocks of a"):
        codec.decode_into(payload, start, torch.empty(size))


@every_codec
def test_a_payload_at_an_odd_address_is_read_all_the_same(codec: Codec) -> None:
    payload = codec.encode(random(1001))
    shifted = torch.cat([torch.zeros(1, dtype=torch.uint8), payload])[1:]
    assert torch.equal(decoded(codec, shifted, 1001), decoded(codec, payload, 1001))
    codec.check(shifted, 1001)


@every_codec
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_not_encoded(codec: Codec, wrong: float) -> None:
    values = random(1000)
    values[[777, 778]] = wrong
    with pytest.raises(CodecError, match=r"2 of 1000 values that are not finite, the first .* at element 777"):
        codec.encode(values)


def test_values_too_large_for_bf16_are_not_encoded() -> None:
    with pytest.raises(CodecError, match="too large for BF16"):
        codec_named("BF16").encode(torch.full((100,), torch.finfo(torch.float32).max))


@pytest.mark.parametrize(("name", "limit"), [("Int8", 127), ("Int4", 7)])
def test_a_value_is_encoded_as_long_as_no_code_of_its_step_overflows(name: str, limit: int) -> None:
    codec = codec_named(name)
    largest = torch.finfo(torch.float32).max * limit / (limit + 1)
    values = torch.tensor([0.98 * largest, 0.0])
    torch.testing.assert_close(decoded(codec, codec.encode(values), 2), values, rtol=2.0**-8, atol=0.0)
    with pytest.raises(CodecError, match=f"too large for {name}"):
        codec.encode(torch.tensor([1.001 * largest, 0.0]))


@pytest.mark.parametrize(
    "values",
    [torch.zeros(4, dtype=torch.float64), torch.zeros(2, 2), torch.zeros(8)[::2]],
    ids=["f64", "2d", "strided"],
)
@every_codec
def test_only_flat_f32_is_encoded(codec: Codec, values: torch.Tensor) -> None:
    with pytest.raises(CodecError, match="a flat contiguous float32 tensor"):
        codec.encode(values)


@every_codec
@pytest.mark.parametrize("size", [0, 1, 1999, 100_000])
def test_a_payload_of_another_size_is_refused(codec: Codec, size: int) -> None:
    with pytest.raises(CodecError, match=f"payload of 1000 elements has .* bytes, not {size}"):
        codec.check(torch.zeros(size, dtype=torch.uint8), 1000)


@pytest.mark.parametrize("name", ["None", "BF16"])
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_payload_with_a_value_that_is_not_finite_is_refused(name: str, wrong: float) -> None:
    numel = BLOCK + 50
    codec = codec_named(name)
    payload = codec.encode(random(numel)).clone()
    payload.view(torch.float32 if name == "None" else torch.bfloat16)[-1] = wrong
    with pytest.raises(CodecError, match="a value that is not finite"):
        codec.check(payload, numel)


@pytest.mark.parametrize("name", ["Int8", "Int4"])
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, 1e37, -1e37])
def test_a_payload_with_a_scale_that_makes_values_not_finite_is_refused(name: str, wrong: float) -> None:
    numel = BLOCK + 50
    codec = codec_named(name)
    payload = codec.encode(random(numel))
    payload[codec.payload_bytes(BLOCK) :][:2] = torch.tensor([wrong], dtype=torch.bfloat16).view(torch.uint8)
    with pytest.raises(CodecError, match="a scale that makes values that are not finite"):
        codec.check(payload, numel)


@pytest.mark.parametrize("name", ["Int8", "Int4"])
def test_any_bytes_that_pass_the_check_decode_to_finite_values(name: str) -> None:
    codec = codec_named(name)
    payload = torch.full((codec.payload_bytes(500),), 0x80, dtype=torch.uint8)  # the code furthest from 0
    scales = -(-500 // ENCODINGS[name].group)
    payload[: 2 * scales].view(torch.bfloat16).fill_(torch.finfo(torch.bfloat16).max / 128)
    codec.check(payload, 500)
    assert torch.isfinite(decoded(codec, payload, 500)).all()


@pytest.mark.parametrize(("name", "limit"), [("Int8", 127), ("Int4", 7)])
def test_multiples_of_the_step_come_back_exactly(name: str, limit: int) -> None:
    values = torch.arange(-limit, limit + 1, dtype=torch.float32) * 0.5
    assert torch.equal(decoded(codec_named(name), codec_named(name).encode(values), len(values)), values)


@pytest.mark.parametrize(("name", "limit"), [("Int8", 127), ("Int4", 7)])
def test_ties_go_to_the_even_multiple(name: str, limit: int) -> None:
    values = torch.tensor([float(limit), 0.5, 1.5, 2.5, -0.5, -1.5])
    expected = torch.tensor([float(limit), 0.0, 2.0, 2.0, -0.0, -2.0])
    assert torch.equal(decoded(codec_named(name), codec_named(name).encode(values), 6), expected)


@every_codec
def test_zeros_are_sent_as_bytes_of_zero(codec: Codec) -> None:
    payload = codec.encode(torch.zeros(300))
    assert not payload.any()
    assert torch.equal(decoded(codec, payload, 300), torch.zeros(300))


def test_plain_f32_is_read_where_it_lies() -> None:
    codec, numel = codec_named("None"), 2 * BLOCK
    payload = codec.encode(random(numel))
    for start in (0, BLOCK):
        scratch = torch.full((BLOCK,), 7.0)
        assert codec.decode(payload, start, scratch).data_ptr() == payload.data_ptr() + 4 * start
        assert torch.equal(scratch, torch.full((BLOCK,), 7.0))


@pytest.mark.parametrize("name", ["BF16", "Int8", "Int4"])
def test_what_is_not_f32_is_widened_into_the_scratch(name: str) -> None:
    codec, scratch = codec_named(name), torch.empty(1001)
    assert codec.decode(codec.encode(random(1001)), 0, scratch) is scratch
    torch.testing.assert_close(scratch, random(1001), rtol=0.0, atol=0.5)


@every_codec
def test_an_empty_buffer_has_an_empty_payload(codec: Codec) -> None:
    assert codec.payload_bytes(0) == 0
    assert codec.encode(torch.empty(0)).numel() == 0
    codec.check(torch.empty(0, dtype=torch.uint8), 0)


@every_codec
def test_equal_values_give_equal_bytes(codec: Codec) -> None:
    numel = BLOCK + 77
    first = codec.encode(random(numel))
    torch_threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3 - min(torch_threads, 2))
        assert torch.equal(codec.encode(random(numel)), first)
    finally:
        torch.set_num_threads(torch_threads)


@pytest.mark.parametrize("name", ["Int8", "Int4"])
def test_the_smallest_step_is_sent_and_what_is_below_is_zero(name: str) -> None:
    codec = codec_named(name)
    assert isinstance(codec, ScaledCodec)
    for step, sent in ((2.0**-100, True), (0.99 * 2.0**-100, False)):
        values = torch.zeros(codec.encoding.group)
        values[0] = codec.limit * step
        decoded = torch.empty_like(values)
        codec.decode_into(codec.encode(values), 0, decoded)
        assert torch.equal(decoded, values) == sent
        assert decoded.any().item() == sent
