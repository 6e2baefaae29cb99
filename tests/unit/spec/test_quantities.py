import math

import pytest

from diloco.spec.quantities import QuantityError, parse_bytes, parse_count, parse_duration, parse_rate


@pytest.mark.parametrize(
    ("text", "bytes_per_second"),
    [
        ("100Mbit/s", 12.5e6),
        ("12.5MB/s", 12.5e6),
        ("12.5 MB/s", 12.5e6),
        ("1Gbit/s", 125e6),
        ("10kB/s", 1e4),
        ("8bit/s", 1.0),
        ("1MiB/s", 2.0**20),
        ("1e3kbit/s", 125e3),
        ("1_000kbit/s", 125e3),
        ("0.5Tbit/s", 62.5e9),
        ("unlimited", math.inf),
    ],
)
def test_rates_are_read_in_bits_and_in_bytes(text: str, bytes_per_second: float) -> None:
    assert parse_rate("--link", text) == pytest.approx(bytes_per_second)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("100", "'100' is a rate without a unit; use bits or bytes per second, such as 100Mbit/s or 12.5MB/s"),
        ("100M", "'100M' has the unit 'M', which is not a unit of rates; use bits or bytes"),
        ("100Mbps", "has the unit 'Mbps'"),
        ("100Mb/s", "has the unit 'Mb/s'"),
        ("100MBit/s", "has the unit 'MBit/s'"),
        ("100Mbit", "has the unit 'Mbit'"),
        ("0Mbit/s", "'0Mbit/s' is zero, too small or too large"),
        ("1e-320Mbit/s", "is zero, too small or too large"),
        ("1e-400Mbit/s", "is zero, too small or too large"),
        ("1e400Mbit/s", "is zero, too small or too large"),
        ("-5Mbit/s", "'-5Mbit/s' is not a rate; use digits and a unit, such as 100Mbit/s or 12.5MB/s"),
        ("nanMbit/s", "is not a rate"),
        ("infMbit/s", "is not a rate"),
        ("1.2.3Mbit/s", "has the unit '.3Mbit/s'"),
        ("1__0Mbit/s", "has the unit '__0Mbit/s'"),
        ("٣Mbit/s", "is not a rate"),
        ("", "'' is not a rate"),
    ],
)
def test_a_rate_that_can_be_misread_is_refused_with_what_to_write(text: str, told: str) -> None:
    with pytest.raises(QuantityError) as caught:
        parse_rate("--link west", text)
    assert str(caught.value).startswith("--link west: ")
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10ms", 0.01), (".5s", 0.5), ("250us", 250e-6), ("2min", 120.0), ("2h", 7200.0), ("1d", 86400.0)],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration("--link", text) == pytest.approx(seconds)
    assert parse_duration("--step", "0.25", bare_seconds=True) == 0.25


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("10", "'10' is a duration without a unit; use us, ms, s, min, h, d, such as 10s"),
        ("10msec", "has the unit 'msec'"),
        ("0ms", "is zero, too small or too large"),
        ("-1ms", "is not a duration"),
        ("nan", "is not a duration"),
        ("90000s", "'90000s' is too long; use at most 24h"),
    ],
)
def test_a_duration_that_is_none_is_refused(text: str, told: str) -> None:
    with pytest.raises(QuantityError, match=r"^--link west: ") as caught:
        parse_duration("--link west", text)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("text", "millions"), [("124000000", 124), ("124_000_000", 124), ("124M", 124), ("1.3B", 1300), ("1e9", 1000)]
)
def test_counts_are_read(text: str, millions: int) -> None:
    assert parse_count("--parameters", text) == millions * 10**6


@pytest.mark.parametrize("text", ["0", "0.4", "-5", "many", "5x", "nan", "1e999"])
def test_a_count_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(QuantityError, match=r"^--parameters: "):
        parse_count("--parameters", text)


@pytest.mark.parametrize(("text", "size"), [("80GiB", 80 * 2**30), ("1.5 GB", 1_500_000_000), ("512MiB", 2**29)])
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_bytes("--device-memory", text) == size


@pytest.mark.parametrize("text", ["80", "80G", "0GiB", "much"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(QuantityError, match=r"^--device-memory: .* such as 80GiB$"):
        parse_bytes("--device-memory", text)
