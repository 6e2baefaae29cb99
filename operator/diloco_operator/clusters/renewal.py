"""Asks a remote cluster for a new token of the operator's own ServiceAccount there, before the present one runs out."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from diloco.runtime.backoff import Backoff
from diloco_operator.cluster.errors import ApiError
from diloco_operator.clusters.session import Session
from diloco_operator.clusters.state import Credential, Expiring
from diloco_operator.clusters.tokens import TokenClaims

_log = logging.getLogger(__name__)
LONGEST_SLEEP_SECONDS: Final = 600.0
"""The clock is read again after this long: it may have been set meanwhile."""
FIRST_PAUSE_SECONDS: Final = 30.0
"""Before it is asked for again."""
LONGEST_PAUSE_SECONDS: Final = 3600.0


@dataclass(slots=True)
class Renewal:
    """The renewal of one session's token."""

    session: Session
    keep: Callable[[str], Awaitable[None]]
    """Keeps the new token, and has it used."""
    now: Callable[[], datetime]
    random: Callable[[], float]
    not_renewed: Expiring | None = None
    """The token, where it was to be renewed and could not; None: nothing is to be said of it."""

    async def run(self) -> None:
        """Renew it once; the new one has a session, and a renewal, of its own."""
        claims = TokenClaims.of(self.session.config.token)
        if claims is None:
            return
        backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, self.random)
        failures = 0
        while True:
            left_seconds = (claims.renew_at - self.now()).total_seconds()
            if left_seconds > 0:
                await asyncio.sleep(min(left_seconds, LONGEST_SLEEP_SECONDS))
                continue
            await self.session.is_up()
            why = await self._renew(claims)
            if not why:
                return
            failures += 1
            if self.not_renewed is None:
                _log.warning("the token for %s is not renewed: %s", self.session.config.server, why)
                self.not_renewed = Expiring(Credential.TOKEN, claims.issued, claims.expires)
                self.session.told()
            await asyncio.sleep(backoff.seconds(failures))

    async def _renew(self, claims: TokenClaims) -> str:
        """Why there is no new token; empty: there is one."""
        try:
            token = await self.session.api.token(claims.namespace, claims.account, claims.asked_seconds)
            later = TokenClaims.of(token)
            if later is None or not claims.precedes(later):
                return "the new one does not last longer"
            await self.keep(token)
        except ApiError as error:
            return str(error)
        return ""
