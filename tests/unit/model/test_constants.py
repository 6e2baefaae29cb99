import pytest

from diloco.core.fragments import Match
from diloco.model import ModelError
from diloco.model.build import build_model, layout_of_job
from diloco.model.fragments import layout_of
from diloco.spec import JobSpec
from tests.support.small_job import small_job


def job(name: str, seed: int = 0, **arguments: object) -> JobSpec:
    model = {"entrypoint": f"tests.support.models_with_buffers:{name}", "arguments": arguments}
    spec = small_job(model=model, sync={"fragments": 1})
    return spec.model_copy(update={"training": spec.training.model_copy(update={"seed": seed})})


def test_state_that_is_no_tensor_is_refused() -> None:
    with pytest.raises(ModelError, match="the model has extra state, which is not synchronized; use buffers"):
        build_model(job("ExtraState"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (job("frozen_embedding", fill=1.0), job("frozen_embedding", fill=2.0)),
        (job("drawn_table"), job("drawn_table", seed=1)),
        (job("whole_numbers"), job("bool_mask")),
        (job("Lora"), job("Lora", seed=1)),
    ],
)
def test_the_digest_tells_two_bases_that_are_cut_alike_apart(one: JobSpec, other: JobSpec) -> None:
    ours, theirs = layout_of(build_model(one), 1), layout_of(build_model(other), 1)
    assert ours.cut == theirs.cut
    assert ours.match(theirs.digest) is Match.OTHER_CONSTANTS
    assert ours.match(layout_of(build_model(one), 1).digest) is Match.SAME
    assert ours.match(ours.cut) is Match.OTHER_CONSTANTS


def test_what_is_not_saved_is_no_part_of_the_digest() -> None:
    layout = layout_of(build_model(job("not_saved")), 1)
    assert layout.constants == ""
    assert layout.digest == layout.cut


def test_a_layout_by_sizes_alone_is_cut_as_the_model_is() -> None:
    for spec in (small_job(), job("tied"), job("Lora"), job("drawn_table")):
        sizes = layout_of_job(spec)
        whole = layout_of(build_model(spec), spec.sync.fragments)
        assert sizes.fragments == whole.fragments
        assert sizes.match(whole.digest) is Match.SAME


def test_an_entrypoint_that_needs_values_is_built_with_them() -> None:
    spec = job("looks_at_values")
    assert layout_of_job(spec) == layout_of(build_model(spec), 1)
    with pytest.raises(ModelError, match=r"model\.entrypoint: tests.support.models_with_buffers has no missing"):
        layout_of_job(job("missing"))
