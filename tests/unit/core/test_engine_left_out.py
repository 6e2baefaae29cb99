"""When a learner whose outer gradients are not credible is reported, and until when."""

from diloco.core.actions import Merge
from diloco.core.events import LeftOut, Merged
from tests.support.engine_script import Script, name, only, options


def merge_without(script: Script, fragment: int, *left_out: LeftOut) -> None:
    """Both learners make a step and send the fragment; it is merged without the given ones."""
    for learner in (0, 1):
        script.step(learner)
    script.push(0, fragment)
    merge = only(script.push(1, fragment), Merge)
    script.do(Merged(merge.fragment, merge.version, "0" * 32, 0.01, left_out=left_out))
    for learner in (0, 1):
        script.applied(learner, fragment, merge.version)


def test_repeatedly_left_out_is_shown_until_all_fragments_merged_with_it() -> None:
    script = Script(options(2))
    script.start(0, 1)

    def told() -> list[str]:
        return [one.left_out_now for one in script.engine.view(script.now).learners]

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
    assert [one.left_out for one in script.engine.view(script.now).learners] == [0, 2]
    merge_without(script, 1, LeftOut(name(1), "it is 60 times as large"))
    assert told() == ["", ""], "another spell"
