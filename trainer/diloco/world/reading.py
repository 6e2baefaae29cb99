"""Reads a world from a file, and from its short forms ``--link REGION=RATE,RTT`` and ``--step POOL=SECONDS``."""

import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from diloco.spec import JobSpec
from diloco.spec.base import SpecModel
from diloco.spec.errors import Problem, SpecError
from diloco.spec.quantities import parse_duration, parse_rate
from diloco.spec.reading.document import read_with_lines
from diloco.spec.reading.load import read_manifest
from diloco.spec.reading.translate import translate
from diloco.spec.words import SchemaReader, listed
from diloco.world import WorldError
from diloco.world.model import EVERY, RegionWorld, SyncerWorld, World

SYNCER: Final = "syncer"
"""Name of the syncer's own link in ``--link``."""
_MOST_NAMES: Final = 6


@cache
def world_schema() -> SchemaReader:
    """The schema of a world file."""
    return SchemaReader(World.model_json_schema())


def load_world(path: Path, spec: JobSpec) -> World:
    """The world in a file (YAML or JSON, UTF-8), for this job.

    Raises:
        SpecError: it cannot be read, or with every problem that was found, each with its place.
    """
    source = str(path)
    document, lines = read_with_lines(read_manifest(path, "a world file"), source)
    world = world_from(document, source, lines)
    if problems := [*world.problems(spec)]:
        raise SpecError(problems, source, lines)
    return world


def world_from(document: object, source: str, lines: dict[str, int] | None = None) -> World:
    """Check a world that is already plain JSON values; ``lines``: where in ``source`` each value is.

    Raises:
        SpecError: with every problem that was found.
    """
    if not isinstance(document, dict):
        raise SpecError([Problem(source, "is not a mapping; its fields are regions and syncer")], source)
    try:
        return World.model_validate_json(json.dumps(document), strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        raise SpecError(translate(error, world_schema(), "world"), source, lines) from None


def read_world(
    spec: JobSpec,
    link_texts: Sequence[str] = (),
    step_texts: Sequence[str] = (),
    *,
    link_flag: str = "--link",
    file: Path | None = None,
) -> World:
    """The world of a file, with what these arguments change in it. Of several for one region or pool the last counts.

    Raises:
        WorldError, QuantityError, SpecError: an argument or the file cannot be used, or names nothing of the job, or
            some pools have a step time by argument and others have none at all.
    """
    world = World() if file is None else load_world(file, spec)
    document = world.model_dump(mode="json", by_alias=True, exclude_unset=True)
    _links(spec, document, link_texts, link_flag)
    given = _steps(spec, document, step_texts)
    made = world_from(document, str(file or "world"))
    missing = [place for place in _pools(spec) if given and not _has_step(made, place)]
    if missing:
        raise WorldError(
            f"--step: is missing for {listed(missing[:_MOST_NAMES], 'and')}; use it for every pool, as in "
            f"--step '{EVERY}=0.5', or for none"
        )
    return made


def _pools(spec: JobSpec) -> tuple[str, ...]:
    return tuple(place for place, pool in spec.pools.items() if pool.size)


def _has_step(world: World, place: str) -> bool:
    pool = world.pool(place)
    return pool.step_seconds is not None or pool.chip_flops is not None


def _links(spec: JobSpec, document: dict[str, Any], texts: Sequence[str], link_flag: str) -> None:
    regions = tuple(region.name for region in spec.regions)
    for text in texts:
        flag = f"{link_flag} {text}"
        name, value = _named(flag, text, "REGION=RATE or REGION=RATE,RTT, such as us-west=200Mbit/s,80ms")
        if name == SYNCER:
            link = _valid(flag, SyncerWorld, {"link": _syncer_rate(flag, value, regions)})
            document.setdefault("syncer", {}).update(link)
            continue
        rate, comma, round_trip = value.partition(",")
        parse_rate(flag, rate)
        trip = {"roundTripSeconds": parse_duration(flag, round_trip)} if comma else {}
        link = _valid(flag, RegionWorld, {"link": rate.strip(), **trip})
        for region in _meant(flag, name, (*regions, SYNCER), regions):
            document.setdefault("regions", {}).setdefault(region, {}).update(link)


def _valid(flag: str, model: type[SpecModel], fields: dict[str, Any]) -> dict[str, Any]:
    """These fields of a part of the world, if it can have them."""
    try:
        model.model_validate(fields)
    except ValidationError as error:
        problem, *_ = translate(error, SchemaReader(model.model_json_schema()))
        raise WorldError(f"{flag}: {problem}") from None
    return fields


def _syncer_rate(flag: str, value: str, regions: Sequence[str]) -> str:
    if SYNCER in regions:
        raise WorldError(
            f"{flag}: {SYNCER!r} is a region of this job and also means the syncer's own link; rename the region"
        )
    if "," in value:
        raise WorldError(
            f"{flag}: {value!r} has a round trip, which only links of regions have; use {SYNCER}=RATE alone"
        )
    parse_rate(flag, value)
    return value.strip()


def _steps(spec: JobSpec, document: dict[str, Any], texts: Sequence[str]) -> bool:
    """Set the step times; whether there are any."""
    pools = _pools(spec)
    names = tuple(dict.fromkeys((*(place.partition("/")[0] for place in pools), *pools)))
    for text in texts:
        flag = f"--step {text}"
        name, value = _named(flag, text, "REGION=SECONDS or REGION/POOL=SECONDS, such as us-west/old=0.5")
        seconds = parse_duration(flag, value, bare_seconds=True)
        for meant in _meant(flag, name, names, pools):
            for place in pools:
                if place == meant or place.startswith(f"{meant}/"):
                    region, _, pool = place.partition("/")
                    within = document.setdefault("regions", {}).setdefault(region, {}).setdefault("pools", {})
                    within.setdefault(pool, {})["stepSeconds"] = seconds
    return bool(texts)


def _named(flag: str, text: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise WorldError(f"{flag}: {text!r} is not NAME=VALUE; use {form}")
    return name, value


def _meant(flag: str, name: str, known: Iterable[str], every: Sequence[str]) -> Sequence[str]:
    if name == EVERY:
        return every
    names = list(known)
    if name not in names:
        more = ["..."] if len(names) > _MOST_NAMES else []
        raise WorldError(
            f"{flag}: {name!r} is not in this job; use {listed([*names[:_MOST_NAMES], *more, repr(EVERY)])}"
        )
    return (name,)
