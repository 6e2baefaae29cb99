"""The token of a ServiceAccount, as far as the operator reads it: whose it is and how long it lasts.

Nothing is believed because of it: the API server checks the token, and this only says when to ask for a new one. Pure.
"""

import base64
import binascii
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self

RENEWED_AFTER: Final = 0.5
"""The share of a token's life after which a new one is asked for."""
SHORTEST_LIFE_SECONDS: Final = 600
"""API servers grant no shorter one (TokenRequest)."""
LONGEST_LIFE_SECONDS: Final = 365 * 24 * 3600
"""More than this is not asked for, whatever the first token's life is."""
_SUBJECT: Final = "system:serviceaccount:"
_PARTS_OF_A_JWT: Final = 3


@dataclass(frozen=True, slots=True)
class TokenClaims:
    """What a token says of itself (RFC 7519)."""

    namespace: str
    """Of its ServiceAccount."""
    account: str
    """The ServiceAccount's name."""
    issued: datetime
    expires: datetime

    @classmethod
    def of(cls, token: str) -> Self | None:
        """The claims of a token; None: it is not of a ServiceAccount, or does not run out."""
        claims = _payload(token)
        subject, issued, expires = claims.get("sub"), _time(claims.get("iat")), _time(claims.get("exp"))
        if not isinstance(subject, str) or not subject.startswith(_SUBJECT) or issued is None or expires is None:
            return None
        namespace, _, account = subject.removeprefix(_SUBJECT).partition(":")
        return cls(namespace, account, issued, expires) if namespace and account and expires > issued else None

    def precedes(self, later: Self) -> bool:
        """Whether the other one is of the same account and lasts longer."""
        same = (self.namespace, self.account) == (later.namespace, later.account)
        return same and later.expires > self.expires

    @property
    def life(self) -> timedelta:
        """How long it lasts in all."""
        return self.expires - self.issued

    @property
    def renew_at(self) -> datetime:
        """When a new one is asked for."""
        return self.issued + self.life * RENEWED_AFTER

    @property
    def asked_seconds(self) -> int:
        """How long the next one is to last: as long as this one."""
        return min(max(int(self.life.total_seconds()), SHORTEST_LIFE_SECONDS), LONGEST_LIFE_SECONDS)


def _payload(token: str) -> dict[str, Any]:
    parts = token.split(".")
    if len(parts) != _PARTS_OF_A_JWT:
        return {}
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}


def _time(value: object) -> datetime | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError):
        return None
