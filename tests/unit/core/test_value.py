from dataclasses import replace

from diloco.core.engine.events import StepReported


def test_values_are_compared_by_their_fields_and_have_no_others() -> None:
    one = StepReported("a/b/0", 1, 2, 3, 0.5, 1.0, 4)
    assert one == replace(one)
    assert hash(one) == hash(replace(one))
    assert one != replace(one, step=5)
    assert not hasattr(one, "__dict__")
