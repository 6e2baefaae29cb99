"""What an arriving outer gradient counts for: its bytes, its learner's answer, and when it is dropped."""

from typing import Any

import pytest

from diloco.core.actions import AskFragment, Discard, Merge, Note
from diloco.core.options import Rules
from tests.support.engine_script import Script, name, of, only, options


def started(learners: int = 2, **changes: Any) -> Script:
    """Every learner has made a step, and the first fragment is requested."""
    script = Script(options(learners, **changes))
    script.start(*range(learners))
    for index in range(learners):
        script.step(index)
    return script


def test_the_bytes_of_what_belongs_to_a_round_are_counted() -> None:
    script = started()
    script.push(0, 0, attempt=7, payload_bytes=1)
    assert script.engine.view(script.now).learners[0].pushed_bytes == 0
    script.push(0, 0, payload_bytes=64)
    script.merge_done(only(script.push(1, 0), Merge))
    script.step(0)
    script.push(0, 1, payload_bytes=32)
    assert [one.pushed_bytes for one in script.engine.view(script.now).learners] == [96, 64]


def test_a_single_token_is_merged() -> None:
    script = started()
    script.push(0, 0, steps=1, tokens=1)
    merge = only(script.push(1, 0), Merge)
    assert [(member.learner, member.tokens) for member in merge.members] == [(name(0), 1), (name(1), 400)]


@pytest.mark.parametrize("rules", list(Rules))
def test_a_learner_that_declines_and_brings_it_counts_once(rules: Rules) -> None:
    script = started(3, quorum=2, rules=rules, max_staleness_steps=1)
    script.decline(0, 0)
    assert not of([*script.push(0, 0), *script.wait(5.0)], Merge)
    assert of([*script.push(1, 0), *script.wait(5.0)], Merge)


def asked_ahead() -> tuple[Script, AskFragment]:
    """Both learners take two steps to answer, so each is asked ahead; returns the second one's latest request."""
    script = Script(options(2, fragments=12, quorum=2, grace_safety=0.0))
    script.start(0, 1)
    for _ in range(30):
        script.step(0)
        script.step(1)
        for ask in [one for at, one in script.log if isinstance(one, AskFragment) and at == script.now - 2.0]:
            script.push(int(ask.learner[-1]), ask.fragment, steps=12)
        for merge in script.all(Merge):
            script.merge_done(merge)
        script.wait(1.0)
    return script, script.all(AskFragment, lambda ask: ask.learner == name(1))[-1]


def test_the_next_process_s_answer_beside_one_asked_ahead_is_dropped() -> None:
    script, ask = asked_ahead()
    script.push(1, ask.fragment)
    script.leave(1)
    script.join(1, "another", script.engine.versions)
    script.ready(1)
    for _ in range(2):  # until its round is launched
        for index in (0, 1):
            script.step(index)
    assert only(script.push(1, ask.fragment), Discard).reason == "the learner has already sent it"


@pytest.mark.parametrize("rules", [Rules.ARRIVED, Rules.READY])
def test_by_earlier_rules_a_repeated_push_is_only_noted(rules: Rules) -> None:
    script = started(rules=rules)
    script.push(0, 0)
    actions = script.push(0, 0)
    assert (only(actions, Note).subject, only(actions, Note).reason) == ("Repeated", "it was received before")
    assert not of(actions, Discard)
    assert "attempt 7" in only(script.push(1, 0, attempt=7), Discard).reason


def test_attempts_count_anew_for_the_next_version() -> None:
    script = Script(options(1, fragments=1))
    script.start(0)
    script.step(0)
    script.decline(0, 0)
    for version, attempt in ((1, 2), (2, 1)):
        script.step(0)
        assert (script.asks[0, 0].version, script.asks[0, 0].attempt) == (version, attempt)
        script.merge_done(only(script.push(0, 0), Merge))


def test_what_came_for_a_round_that_the_budget_ends_is_dropped() -> None:
    script = started(3, quorum=2, budget_tokens=150)
    script.step(0)
    script.step(1)
    script.push(0, 0)
    merge = [
        *of(script.push(0, 1, steps=4), Merge),
        *of(script.push(1, 1, steps=4), Merge),
        *of(script.wait(2.0), Merge),
    ]
    dropped = only(script.merge_done(merge[0]), Discard)
    assert (dropped.learner, dropped.fragment, dropped.attempt) == (name(0), 0, 1)
    assert dropped.reason == "the budget is merged"
