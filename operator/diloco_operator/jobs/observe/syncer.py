"""Asks a job's syncer for its ``/status``, with one bounded GET.

The result is always a value: a syncer that does not answer, or whose answer makes no sense, is a fact about the job
and not an error of the operator. Whoever creates a job chooses what answers, so how much is read, and how much of it is
kept, follows from the learners that are planned.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

import aiohttp
from pydantic import ValidationError
from pydantic_core import from_json

from diloco_operator.api_server.kinds import Object
from diloco_operator.decide.observed import LearnerReport, SyncerAway, SyncerStatusView
from diloco_operator.jobs.jobs import JobKey
from diloco_operator.manifests.common import HTTP_PORT
from diloco_operator.objects import items_of, mapping

TIMEOUT_SECONDS: Final = 3.0
LONGEST_ANSWER_BYTES: Final = 8 << 20
"""However many learners are planned: parsing it takes 25 times as much memory."""
_BYTES: Final = 1 << 20
"""Without learners: nine thousand evaluations."""
_BYTES_PER_LEARNER: Final = 2 << 10
"""The status of a thousand learners takes half a mebibyte."""
_LEAST_BYTES_OF_ITEM: Final = 16
"""Bytes for each object or list; syncers write 30 at least. With 3, parsing 8 MiB holds the interpreter for seconds."""
_FEWEST_UNPLANNED: Final = 64
"""As many learners as are planned may be in the job beside those, and at least so many (the syncer's own rule)."""
_FEWEST_ITEMS: Final = 32
"""Items of any other list that are kept, the latest: as many as there are pools, and at least so many."""
_LONGEST_TEXT: Final = 1000
_LONGEST_OF_LEARNER: Final = 256
Planned = Mapping[str, int]
"""Number of learners, by ``region/pool``."""


def status_url(address: str) -> str:
    """The URL of the ``/status`` of a syncer whose Service has this address. No name has to be looked up for it."""
    return f"http://{f'[{address}]' if ':' in address else address}:{HTTP_PORT}/status"


def new_session() -> aiohttp.ClientSession:
    """A session for a `SyncerClient`, which makes a new connection for each request.

    A kept connection would stay with the peer it was made to, which may be the wrong one: until a Service's rules are
    in place on this node, its address leads out of the cluster, or to a pod that had it before.
    """
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True), trust_env=False)


def planned_learners(job: Object) -> Planned:
    """The learners of a job whose spec may be invalid."""
    found = {}
    for region in map(mapping, items_of(mapping(job.get("spec")).get("regions"))):
        for pool in map(mapping, items_of(region.get("pools"))):
            learners = pool.get("learners", 1)
            found[f"{region.get('name')}/{pool.get('name')}"] = max(0, learners) if isinstance(learners, int) else 0
    return found


class SyncerClient:
    """Requests the status of syncers."""

    def __init__(self, session: aiohttp.ClientSession, url_of: Callable[[str], str] = status_url) -> None:
        """The caller closes `session`."""
        self._session = session
        self._url_of = url_of
        self._parsing = asyncio.Lock()

    async def ask(self, job: JobKey, address: str, planned: Planned) -> SyncerStatusView | SyncerAway:
        """The status of a job's syncer, or why there is none, in a text that stays the same while the cause does.

        `address` is that of the syncer's Service.
        """
        most_bytes = min(LONGEST_ANSWER_BYTES, _BYTES + _BYTES_PER_LEARNER * sum(planned.values()))
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                body = await self._get(self._url_of(address), most_bytes)
        except TimeoutError:
            return SyncerAway(f"no answer within {TIMEOUT_SECONDS:.0f} s")
        except aiohttp.ClientConnectorError as error:
            # The error's own text contains an address, which may change.
            number = error.os_error.errno
            return SyncerAway(f"cannot connect: {os.strerror(number) if number else 'no route'}")
        except aiohttp.ClientError as error:
            return SyncerAway(f"invalid answer: {type(error).__name__}")
        if isinstance(body, SyncerAway):
            return body
        # One at a time, because it takes much memory.
        async with self._parsing:
            return await asyncio.to_thread(_understood, job, planned, body)

    async def _get(self, url: str, most_bytes: int) -> bytearray | SyncerAway:
        async with self._session.get(url, allow_redirects=False) as response:
            if response.status != 200:
                return SyncerAway(f"answered with HTTP {response.status}")
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > most_bytes:
                    return SyncerAway(f"its /status is larger than {most_bytes >> 10} KiB")
            return body


def _understood(job: JobKey, planned: Planned, body: bytearray) -> SyncerStatusView | SyncerAway:
    if (body.count(b"{") + body.count(b"[")) * _LEAST_BYTES_OF_ITEM > max(len(body), _BYTES_PER_LEARNER):
        return SyncerAway("its /status is invalid: it has too many items")
    try:
        found = from_json(body)
    except ValueError:
        return SyncerAway("its /status is invalid: it is not JSON")
    try:
        view = SyncerStatusView.model_validate(_bounded(found, planned))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "the answer"
        return SyncerAway(f"its /status is invalid: {field}: {first['msg']}")
    if view.job != job.name:
        return SyncerAway(f"it answers for another job, {view.job[:63]!r}")
    return view


def _bounded(found: Any, planned: Planned) -> Any:
    """What is kept of an answer."""
    if not isinstance(found, dict):
        return found
    most = max(len(planned), _FEWEST_ITEMS)
    kept = {name: _short(found[name], _LONGEST_TEXT, most) for name in SyncerStatusView.model_fields if name in found}
    if "learners" in kept:
        kept["learners"] = _reports(items_of(found["learners"]), planned)
    return kept


def _reports(found: list[Any], planned: Planned) -> list[Any]:
    """One report of each planned learner, and of as many others as the syncer may have."""
    most_others = max(sum(planned.values()), _FEWEST_UNPLANNED)
    kept: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for report in map(mapping, found):
        learner = report.get("id")
        if not isinstance(learner, str) or len(learner) > _LONGEST_OF_LEARNER:
            continue
        pool, _, index = learner.rpartition("/")
        is_planned = index.isdecimal() and index == str(int(index)) and int(index) < planned.get(pool, 0)
        if is_planned or len(others) < most_others:
            fields = (name for name in LearnerReport.model_fields if name in report)
            (kept if is_planned else others)[learner] = {
                name: _short(report[name], _LONGEST_OF_LEARNER) for name in fields
            }
    return [*kept.values(), *others.values()]


def _short(value: Any, longest: int, most: int = _FEWEST_ITEMS) -> Any:
    """A value of bounded size: the beginning of a text, the latest items of a list, all texts in them cut likewise."""
    if isinstance(value, str):
        return value[:longest]
    if isinstance(value, list):
        return [_short(one, longest, most) for one in value[-most:]]
    if isinstance(value, dict):
        return {key[:longest]: _short(one, longest, most) for key, one in list(value.items())[:_FEWEST_ITEMS]}
    return value
