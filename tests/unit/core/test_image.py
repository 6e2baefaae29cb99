"""An engine made from an image is the one that it was taken from; what is not an image is refused."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from diloco.core.engine import Engine
from diloco.core.image import ImageError
from tests.support.engine_script import Script, options


def image_of(script: Script) -> Any:
    return json.loads(json.dumps(script.engine.image()))


def busy() -> Script:
    """Two learners with rounds under way."""
    script = Script(options(2))
    script.start(0, 1)
    for _ in range(6):
        script.step(0)
        script.step(1)
    script.push(0, 0)
    return script


def test_a_new_engine_comes_back_equal() -> None:
    chosen = options(2)
    engine = Engine(chosen, 3)
    assert Engine.from_image(chosen, 3, engine.image()).image() == engine.image()


def test_rounds_under_way_and_numbers_that_are_not_finite_come_back() -> None:
    script = busy()
    script.engine._state.learners["here/pool/0"].loss = float("inf")
    image = image_of(script)
    again = Engine.from_image(script.options, 1, image)
    assert again._state == script.engine._state
    assert again._state.rounds
    assert image_of(script) == json.loads(json.dumps(again.image()))


def test_an_image_does_not_change_with_its_engine() -> None:
    script = busy()
    image = script.engine.image()
    before = json.dumps(image)
    script.step(0)
    script.push(1, 0)
    assert json.dumps(image) == before


def test_a_field_that_was_added_later_has_its_default() -> None:
    script = busy()
    image = image_of(script)
    names = image["fields"]["LearnerRecord"]
    place = names.index("left_out_lately")
    names.pop(place)
    learners = image["state"][image["fields"]["EngineState"].index("learners")]
    for _, record in learners:
        record.pop(place)
    assert Engine.from_image(script.options, 1, image)._state == script.engine._state


def field(name: str, value: Any) -> Callable[[Any], None]:
    """Gives a field of the state another value."""

    def change(image: Any) -> None:
        image["state"][image["fields"]["EngineState"].index(name)] = value

    return change


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda image: image.pop("fields"), "has not the fields format, state and fields"),
        (lambda image: image.update(format=2), "format 2; this version reads 1"),
        (lambda image: image.update(fields=[]), "fields is not an object of lists of names"),
        (lambda image: image["fields"].update(Round=3), "engine state: fields is not an object of lists of names"),
        (lambda image: image["state"].pop(), "engine state is not a list of"),
        (lambda image: image["fields"]["EngineState"].append("moods"), "no field 'moods': a later version"),
        (lambda image: image["fields"]["Round"].pop(0), "Round is not a list|rounds is not a list"),
        (field("versions", [1]), "1 fragments, the job has 4"),
        (field("versions", 7), r"EngineState\.versions is not a list"),
        (field("merges", 1.5), r"EngineState\.merges is 1\.5: not of type int"),
        (field("merges", "1"), r"EngineState\.merges is '1': not of type int"),
        (field("elapsed_seconds", 10**400), "more than a float can hold"),
        (field("phase", "Dancing"), "'Dancing': not a Phase"),
        (field("learners", [["a"]]), r"EngineState\.learners is not a list of 2 values"),
    ],
)
def test_what_is_not_an_image_is_refused_with_the_field(change: Callable[[Any], None], text: str) -> None:
    script = busy()
    image = image_of(script)
    change(image)
    with pytest.raises(ImageError, match=text):
        Engine.from_image(script.options, 1, image)
    with pytest.raises(ImageError, match="has not the fields"):
        Engine.from_image(script.options, 1, [])  # type: ignore[arg-type]


def test_a_missing_field_without_a_default_is_named() -> None:
    script = busy()
    image = image_of(script)
    place = image["fields"]["Request"].index("attempt")
    image["fields"]["Request"][place] = "version"
    with pytest.raises(ImageError, match="Request lacks the field 'attempt'"):
        Engine.from_image(script.options, 1, image)
