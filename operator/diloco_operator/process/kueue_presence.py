"""Whether the cluster has Kueue. It may be installed, removed and installed again while the operator runs."""

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Final

from diloco_operator.api_server.api import Api
from diloco_operator.api_server.errors import ApiError, NotFoundError
from diloco_operator.api_server.kinds import WORKLOAD

_log = logging.getLogger(__name__)
_SECONDS: Final = 60.0
"""How often a cluster without Kueue is asked whether it has it now."""


@dataclass(frozen=True, slots=True)
class KueuePresence:
    """Watches of Workloads wait for it, and jobs with a queue are told what is missing."""

    api: Api
    used: bool
    """The operator was installed with ``kueue.enabled``."""
    is_there: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def missing(self) -> str:
        """Why no job can be queued; empty: nothing is missing."""
        if not self.used:
            return "spec.queue: the operator was installed without kueue.enabled; set it in the chart's values"
        if self.is_there.is_set():
            return ""
        return f"spec.queue: the cluster has no {WORKLOAD.resource} of version {WORKLOAD.version}; install Kueue"

    async def look(self) -> None:
        """Ask whether it is there.

        Raises:
            ApiError: the API server does not say.
        """
        if self.used and not self.is_there.is_set() and await self.api.serves(WORKLOAD):
            self.is_there.set()

    async def keep_looking(self) -> None:
        """Find out that it was installed later, or again."""
        while self.used:
            await asyncio.sleep(_SECONDS)
            try:
                await self.look()
            except ApiError as error:
                _log.warning("%s; retrying", error)

    async def wait(self) -> None:
        """Wait until it is there."""
        await self.is_there.wait()

    def watch_failed(self, error: ApiError) -> None:
        """Take in why a watch of Workloads has ended."""
        if isinstance(error, NotFoundError):
            self.is_there.clear()
