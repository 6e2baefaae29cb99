from decimal import Decimal

import pytest

from diloco.spec.kube.values import amount


@pytest.mark.parametrize(
    ("quantity", "number"),
    [
        ("2", "2"),
        ("-2", "-2"),
        ("1500m", "1.5"),
        (".5", "0.5"),
        ("1.", "1"),
        ("250n", "0.00000025"),
        ("4k", "4000"),
        ("1Ki", "1024"),
        ("1.5Gi", "1610612736"),
        ("1E", "1000000000000000000"),
        ("1Ei", "1152921504606846976"),
        ("12e3", "12000"),
        ("1E-2", "0.01"),
    ],
)
def test_a_quantity_means_a_number(quantity: str, number: str) -> None:
    assert amount(quantity) == Decimal(number)


def test_a_quantity_beyond_all_is_only_large() -> None:
    assert amount("1e999999999999") > amount("8E")
