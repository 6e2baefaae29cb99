"""When a token is renewed follows from what it says of itself, and what it cannot say stops nothing."""

import base64
from datetime import UTC, datetime, timedelta

import pytest

from diloco_operator.clusters.tokens import LONGEST_LIFE_SECONDS, SHORTEST_LIFE_SECONDS, TokenClaims
from tests.support.kubeconfigs import account_token

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def claims(life: timedelta) -> TokenClaims:
    found = TokenClaims.of(account_token(NOW, NOW + life))
    assert found is not None
    return found


def test_a_token_is_renewed_at_half_of_its_life_for_as_long() -> None:
    found = claims(timedelta(hours=8))
    assert (found.namespace, found.account) == ("there", "ops")
    assert found.renew_at == NOW + timedelta(hours=4)
    assert found.asked_seconds == 8 * 3600


@pytest.mark.parametrize(
    ("life", "seconds"), [(timedelta(seconds=60), SHORTEST_LIFE_SECONDS), (timedelta(days=4000), LONGEST_LIFE_SECONDS)]
)
def test_what_is_asked_for_is_within_bounds(life: timedelta, seconds: int) -> None:
    assert claims(life).asked_seconds == seconds


@pytest.mark.parametrize(
    "token",
    [
        "",
        "opaque",
        "a.b.c",
        "a.%%%.c",
        account_token(NOW, None),
        account_token(NOW, NOW),
        account_token(NOW, NOW + timedelta(hours=1), "me"),
        account_token(NOW, NOW + timedelta(hours=1), "system:serviceaccount:there:"),
        *(
            f"a.{base64.urlsafe_b64encode(claims.encode()).decode()}.c"
            for claims in (
                "[]",
                "[" * 100_000,
                '{"sub": 5, "iat": 1, "exp": 2}',
                '{"sub": "system:serviceaccount:a:b", "iat": 1, "exp": 1e300}',
                '{"sub": "system:serviceaccount:a:b", "iat": NaN, "exp": 2}',
                '{"sub": "system:serviceaccount:a:b", "iat": true, "exp": 2}',
            )
        ),
    ],
)
def test_a_token_without_an_account_and_an_end_has_no_claims(token: str) -> None:
    assert TokenClaims.of(token) is None
