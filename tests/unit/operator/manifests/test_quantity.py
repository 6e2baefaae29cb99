"""Quantities in the form that an API server returns."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diloco_operator.manifests.quantity import canonical, canonical_resources

SUFFIXES = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1),
    "k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12), "P": Fraction(10**15),
    "E": Fraction(10**18), "Ki": Fraction(2**10), "Mi": Fraction(2**20), "Gi": Fraction(2**30), "Ti": Fraction(2**40),
    "Pi": Fraction(2**50), "Ei": Fraction(2**60),
}  # fmt: skip  # one a line says no more


def amount(text: str) -> Fraction:
    number = text.rstrip("numkKMGTPEi")
    return Fraction(number) * SUFFIXES[text[len(number) :]]


# What `kubectl create --dry-run=server` answers; tests/integration holds the same against a real API server.
@pytest.mark.parametrize(
    ("written", "answered"),
    [
        (1, "1"),
        (0.5, "500m"),
        (1000, "1k"),
        ("1000m", "1"),
        ("1500m", "1500m"),
        ("0.1", "100m"),
        (".5", "500m"),
        ("1.", "1"),
        ("+2", "2"),
        ("-2", "-2"),
        ("0", "0"),
        ("0Gi", "0"),
        ("1024Mi", "1Gi"),
        ("0.5Gi", "512Mi"),
        ("1536Mi", "1536Mi"),
        ("1023", "1023"),
        ("0.5Ki", "512"),
        ("1500Mi", "1500Mi"),
        ("1000M", "1G"),
        ("1e3", "1e3"),
        ("12e2", "1200"),
        ("1E", "1E"),
        ("0.1n", "1n"),
        ("1.2345678901", "1234567891n"),
    ],
)
def test_quantities_are_written_as_the_server_answers(written: object, answered: str) -> None:
    assert canonical(written) == answered


@given(st.integers(1, 10**6), st.sampled_from(sorted(SUFFIXES)))
def test_the_form_changes_and_the_amount_does_not(number: int, suffix: str) -> None:
    text = canonical(f"{number}{suffix}")
    assert amount(text) == amount(f"{number}{suffix}")
    assert canonical(text) == text


@pytest.mark.parametrize("nonsense", ["", "much", "1 Gi", "1Gib", None, True, ["1"], {"cpu": 1}, "1e", "9" * 5000])
def test_what_is_no_quantity_is_left_for_the_server_to_refuse(nonsense: object) -> None:
    assert canonical(nonsense) == nonsense


def test_only_quantities_of_resources_are_touched() -> None:
    resources = {"limits": {"cpu": "1000m"}, "requests": {"memory": 1024}, "claims": [{"name": "1000m"}]}
    expected = {"limits": {"cpu": "1"}, "requests": {"memory": "1024"}, "claims": [{"name": "1000m"}]}
    assert canonical_resources(resources) == expected
