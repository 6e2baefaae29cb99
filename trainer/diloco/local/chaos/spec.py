"""Parses descriptions of faults: ``diloco run --chaos`` and ``diloco chaos --fault``. Pure.

    KIND:TARGET@step=N[,seconds=S][,manner=silent|reset]
    KIND:TARGET@rate=R[,by=UNIT][,seconds=S][,manner=silent|reset]
    KIND:TARGET@at=T[,seconds=S][,manner=silent|reset]

``kill`` ends processes with SIGKILL, ``pause`` stops them with SIGSTOP for ``seconds``, ``cut`` cuts a region's link
for ``seconds``. TARGET is a learner, a pool, a region, ``*`` (every learner) or ``syncer``; for a cut a region or
``*``. ``step`` is an inner step of the learner that is hit; for a cut and for the syncer it is a syncer step. ``rate``
is the mean number of faults in each hour that a victim is up. ``at`` is in seconds since ``diloco chaos`` began, which
has it in place of ``step``, and ``by``: the learners of a pool, region or node fail at once. In a cluster, ``kill``
deletes pods without grace, and ``evict`` with it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from diloco.local.targets import SYNCER, TargetError, learners_named, regions_named

_RANGES: Final = {"step": (1, 10**12), "at": (0.0, 1e6), "rate": (1e-6, 1e6), "seconds": (1e-3, 1e8)}
"""Least and most of each setting (ours): beyond these a fault would never happen, or nothing else would."""


class ChaosError(ValueError):
    """An invalid ``--chaos``; the text is one line that names it and what is allowed."""


class FaultKind(StrEnum):
    """What happens to the victim."""

    KILL = "kill"
    PAUSE = "pause"
    CUT = "cut"
    EVICT = "evict"
    """In a cluster: a pod is deleted and has its grace period."""


class Manner(StrEnum):
    """How a link is cut."""

    SILENT = "silent"
    """Nothing passes and neither side is notified, as with an unplugged cable; connections survive if it ends in
    time."""
    RESET = "reset"


class Unit(StrEnum):
    """Which learners fail at once, by rate."""

    LEARNER = "learner"
    POOL = "pool"
    REGION = "region"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Grammar:
    """What one command accepts."""

    flag: str
    kinds: tuple[FaultKind, ...]
    time: str
    """The setting beside ``rate``."""
    example: str
    units: tuple[Unit, ...] = ()
    """Of rates. Empty: each learner fails alone."""


_OF_PROCESSES: Final = (FaultKind.KILL, FaultKind.PAUSE, FaultKind.CUT)
RUN: Final = Grammar("--chaos", _OF_PROCESSES, "step", "kill:us-west/old/0@step=150")
_EXAMPLE: Final = "kill:us-west/old/0@at=30"
LOCAL: Final = Grammar("--fault", _OF_PROCESSES, "at", _EXAMPLE, (Unit.LEARNER, Unit.POOL, Unit.REGION))
CLUSTER: Final = Grammar("--fault", (FaultKind.KILL, FaultKind.EVICT), "at", _EXAMPLE, tuple(Unit))


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, from the user's request to the report.

    It is due at ``step`` (``diloco run``), at random times of ``rate_per_hour``, or at ``at_seconds``.
    """

    kind: FaultKind
    target: str
    """Who fails, as people name it."""
    victims: tuple[str, ...]
    """Learner ids or ``syncer``; region names for a cut. Once it is injected: those that were hit."""
    text: str = ""
    """As the user gave it."""
    at_seconds: float = 0.0
    """When it is due or was injected, since the session or run began."""
    step: int | None = None
    rate_per_hour: float | None = None
    """If its times are drawn: how many there are on average."""
    unit: Unit = Unit.LEARNER
    seconds: float = 0.0
    """How long a pause or a cut lasts."""
    manner: Manner = Manner.SILENT
    around: tuple[str, ...] = ()
    """For a node: the learners that are hit if they run on it when the fault is due. ``victims`` ran on it when it was
    planned."""
    refused: str = ""
    """Why it did not hit all that it should."""

    @property
    def by_syncer_step(self) -> bool:
        """Whether ``step`` counts syncer steps, not the victim's own."""
        return self.kind is FaultKind.CUT or self.victims == (SYNCER,)

    @property
    def key(self) -> str:
        """Identifies this fault of this target within a run, across resumes, and its random times for a seed."""
        return f"{self.text} {self.target}"

    @property
    def each(self) -> "tuple[Fault, ...]":
        """The same fault of each victim alone."""
        return tuple(replace(self, target=victim, victims=(victim,)) for victim in self.victims)


def parse_faults(texts: Sequence[str], learner_ids: Sequence[str], grammar: Grammar = RUN) -> tuple[Fault, ...]:
    """The faults in ``texts``, in order.

    Raises:
        ChaosError: one cannot be parsed, or names nothing in this job.
    """
    return tuple(_parse(text, learner_ids, grammar) for text in texts)


def _parse(text: str, learner_ids: Sequence[str], grammar: Grammar) -> Fault:
    def wrong(why: str) -> ChaosError:
        return ChaosError(f"{grammar.flag} {text!r}: {why}")

    head, at, tail = text.partition("@")
    kind_text, colon, target = head.partition(":")
    if not at or not colon or not target:
        when = f"KIND:TARGET@{grammar.time}=N or KIND:TARGET@rate=R"
        raise wrong(f"is not a fault; use {when}, such as {grammar.example}")
    if kind_text not in grammar.kinds:
        raise wrong(f"{kind_text!r} is not a kind of fault; use {', '.join(grammar.kinds)}")
    kind = FaultKind(kind_text)
    settings = _settings(kind, target, tail, grammar, wrong)
    return Fault(
        kind=kind,
        target=target,
        text=text,
        victims=_victims(kind, target, learner_ids, wrong),
        step=int(_number("step", settings["step"], wrong)) if "step" in settings else None,
        at_seconds=_number("at", settings["at"], wrong) if "at" in settings else 0.0,
        rate_per_hour=_number("rate", settings["rate"], wrong) if "rate" in settings else None,
        unit=_unit(settings.get("by", Unit.LEARNER), grammar, wrong),
        seconds=_number("seconds", settings["seconds"], wrong) if "seconds" in settings else 0.0,
        manner=_manner(settings.get("manner", Manner.SILENT), wrong),
    )


_Wrong = Callable[[str], ChaosError]


def _settings(kind: FaultKind, target: str, text: str, grammar: Grammar, wrong: _Wrong) -> dict[str, str]:
    lasting = kind in (FaultKind.PAUSE, FaultKind.CUT)
    allowed = (
        grammar.time,
        "rate",
        *(("by",) if grammar.units and kind is not FaultKind.CUT and target != SYNCER else ()),
        *(("seconds",) if lasting else ()),
        *(("manner",) if kind is FaultKind.CUT else ()),
    )
    settings: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals:
            raise wrong(f"{part!r} is not NAME=VALUE; use {', '.join(allowed)}")
        if name not in allowed:
            raise wrong(f"{kind} has no option {name!r}; use {', '.join(allowed)}")
        if name in settings:
            raise wrong(f"{name} is given twice; use it once")
        settings[name] = value
    if (grammar.time in settings) == ("rate" in settings):
        raise wrong(f"needs one time; use either {grammar.time}=N or rate=R")
    if "by" in settings and "rate" not in settings:
        raise wrong("by goes with a rate: at one time all that are named fail at once; leave it out")
    if lasting and "seconds" not in settings:
        raise wrong(f"the {kind} has no duration; use one such as seconds=20")
    return settings


def _victims(kind: FaultKind, target: str, learner_ids: Sequence[str], wrong: _Wrong) -> tuple[str, ...]:
    try:
        if kind is FaultKind.CUT:
            return regions_named(target, learner_ids)
        return (SYNCER,) if target == SYNCER else learners_named(target, learner_ids)
    except TargetError as error:
        raise wrong(str(error)) from error


def _unit(text: str, grammar: Grammar, wrong: _Wrong) -> Unit:
    if text not in (Unit.LEARNER, *grammar.units):
        raise wrong(f"by {text!r} is not known here; use {', '.join(grammar.units)}")
    return Unit(text)


def _manner(text: str, wrong: _Wrong) -> Manner:
    if text not in tuple(Manner):
        raise wrong(f"manner {text!r} is unknown; use {' or '.join(Manner)}")
    return Manner(text)


def _number(name: str, text: str, wrong: _Wrong) -> float:
    least, most = _RANGES[name]
    whole = name == "step"
    try:
        value = float(int(text) if whole else text)
    except (ValueError, OverflowError):
        value = 0.0
    if not least <= value <= most:
        kind = "whole number" if whole else "number"
        raise wrong(f"{name} must be a {kind} from {least:g} to {most:g}, not {text[:40]!r}")
    return value
