"""Who loads the model at once, and who is next."""

from random import Random

from diloco.syncer.peers.load_places import LoadPlaces


def places(*learners: str, most: int = 2, turn_seconds: float = 5.0) -> LoadPlaces:
    made = LoadPlaces(most, turn_seconds)
    for learner in learners:
        made.begin(learner)
    return made


def test_places_go_to_those_that_asked_first() -> None:
    line = places("c", "a", "b")
    assert all(line.must_wait(learner, 0.0) for learner in "cab")
    assert line.grant(set("abc"), 0.0) == ["c", "a"]
    assert line.ahead_of("b") == 0
    assert line.grant({"b"}, 4.9) == []
    line.end("a")
    assert line.grant({"b"}, 4.9) == ["b"]


def test_a_turn_ends_and_the_learner_waits_behind_the_others() -> None:
    line = places("slow", "next", most=1)
    assert line.must_wait("slow", 0.0)
    assert line.grant({"slow"}, 0.0) == ["slow"]
    assert line.must_wait("next", 1.0)
    assert not line.must_wait("slow", 4.9)
    assert line.must_wait("slow", 5.0)
    assert line.ahead_of("slow") == 1
    assert line.grant({"slow", "next"}, 5.0) == ["next"]


def test_a_learner_keeps_its_number_between_two_tries() -> None:
    line = places("first", "second", "third", most=1)
    for learner in ("first", "second", "third"):
        assert line.must_wait(learner, 0.0)
    assert line.grant({"first"}, 0.0) == ["first"]
    # The second is not there at the moment: the place is not kept free for it.
    line.end("first")
    assert line.grant({"third"}, 1.0) == ["third"]
    assert line.must_wait("second", 2.0)
    assert line.ahead_of("second") == 0


def test_one_that_joins_again_or_leaves_gives_its_place_back() -> None:
    line = places("a", "b", most=1)
    assert line.must_wait("a", 0.0)
    assert line.grant({"a"}, 0.0) == ["a"]
    line.begin("a")
    assert line.must_wait("b", 0.0)
    assert line.must_wait("a", 0.0)
    assert line.grant({"a", "b"}, 0.0) == ["b"]
    assert line.in_line == 1
    line.end("a")
    assert line.in_line == 0
    assert not line.loads("a")


def test_whoever_waits_gets_its_turn_whatever_the_others_do() -> None:
    random = Random(1)
    names = [f"learner {number}" for number in range(40)]
    line = places(*names, most=3)
    now, waited = 0.0, dict.fromkeys(names, 0)
    for _ in range(4000):
        now += random.random()
        waiting = {name for name in names if line.must_wait(name, now)}
        granted = line.grant(waiting, now)
        assert len(names) - len(waiting) + len(granted) <= 3
        for name in names:
            waited[name] = waited[name] + 1 if name in waiting and name not in granted else 0
            # 40 learners, 3 places, turns of 5 s in steps of half a second on average.
            assert waited[name] < 40 / 3 * 5.0 * 2 * 2
