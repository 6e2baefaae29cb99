"""Work that is not merged counts for nothing, and a learner whose outer gradients are not credible is reported."""

from diloco.core.engine.actions import Broadcast, Merge, Note
from diloco.core.engine.events import LeftOut, Merged
from tests.support.engine_script import Script, name, only, started, stepped


def merge_without(script: Script, fragment: int, *left_out: LeftOut) -> None:
    """Both learners make a step and send the fragment; it is merged without the given ones."""
    for learner in (0, 1):
        script.step(learner)
    script.push(0, fragment)
    merge = only(script.push(1, fragment), Merge)
    script.merge_done(merge, left_out=left_out)


def test_repeatedly_left_out_is_shown_until_all_fragments_merged_with_it() -> None:
    script = started(2)

    def told() -> list[str]:
        return [one.left_out_now for one in script.view.learners]

    merge_without(script, 0, LeftOut(name(1), "it is 40 times as large"))
    assert told() == ["", ""], "one may be a bad batch"
    for fragment in (1, 2, 3):
        merge_without(script, fragment)
    # The text stays the same while it lasts, and a merge with it in between changes nothing.
    merge_without(script, 0, LeftOut(name(1), "it is 50 times as large"))
    assert told() == ["", "it is 40 times as large"]
    for fragment in (1, 2, 3):
        merge_without(script, fragment)
        assert told() == ["", "it is 40 times as large"]
    merge_without(script, 0)
    assert told() == ["", ""]
    assert [one.left_out for one in script.view.learners] == [0, 2]
    merge_without(script, 1, LeftOut(name(1), "it is 60 times as large"))
    assert told() == ["", ""], "another spell"


def test_a_merge_that_failed_counts_for_nothing() -> None:
    script = stepped(1)
    merge = only(script.push(0, 0), Merge)
    broadcast = only(script.do(Merged(merge.fragment, merge.version, "0" * 32, 0.01, failed=True)), Broadcast)
    assert [merged for _, _, merged in broadcast.learners] == [False]
    view = script.view
    assert (view.merged_tokens, view.versions[0]) == (0, 1)


def test_a_member_that_was_left_out_counts_for_nothing_and_is_named() -> None:
    script = stepped()
    script.push(0, 0)
    merge = only(script.push(1, 0), Merge)
    left_out = (LeftOut(name(1), "it is too large"),)
    actions = script.merge_done(merge, applied=False, left_out=left_out)
    assert [merged for _, _, merged in only(actions, Broadcast).learners] == [True, False]
    note = only(actions, Note)
    assert (note.kind, note.learner, note.fragment) == ("MemberLeftOut", name(1), 0)
    assert note.reason == "its outer gradient is not in version 1: it is too large"
    view = script.view
    assert [(one.left_out, one.left_out_reason) for one in view.learners] == [(0, ""), (1, "it is too large")]
    assert [one.merged_tokens for one in view.learners] == [100.0, 0.0]
    assert view.merged_tokens == 100.0
