import re
from dataclasses import replace

import pytest
import torch

from diloco.model import ModelError
from diloco.model.build import build_model, model_from_fragments
from diloco.model.fragments import layout_of, read_fragment
from diloco.model.probe import vocabulary_size_of
from tests.support.small_job import small_job


def entrypoint(name: str, **arguments: object) -> dict[str, object]:
    return {"entrypoint": f"tests.support.entrypoints:{name}", "arguments": arguments}


def test_one_seed_gives_one_model_and_another_seed_another() -> None:
    job = small_job()
    other = job.model_copy(update={"training": job.training.model_copy(update={"seed": 1})})
    one, same, different = (build_model(spec).state_dict() for spec in (job, job, other))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["embedding.weight"], different["embedding.weight"])


def test_building_leaves_the_global_random_state_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    build_model(small_job())
    assert torch.equal(torch.get_rng_state(), before)


def test_text_gives_257_token_ids_and_the_manifest_may_say_more() -> None:
    assert vocabulary_size_of(build_model(small_job())) == 257
    wider = small_job(model={"builtin": {"preset": "pico", "vocabularySize": 300}})
    assert vocabulary_size_of(build_model(wider)) == 300


def test_an_entrypoint_gets_its_arguments() -> None:
    model = build_model(small_job(model=entrypoint("tiny_model", width=12)))
    assert model.get_parameter("embedding.weight").shape == (257, 12)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"entrypoint": "no_such_module_here:f"}, "model.entrypoint: cannot import no_such_module_here .*PYTHONPATH"),
        (entrypoint("missing"), "model.entrypoint: tests.support.entrypoints has no missing"),
        (entrypoint("NOT_CALLABLE"), "tests.support.entrypoints:NOT_CALLABLE is a int, not callable"),
        (entrypoint("tiny_model", depth=3), "raised TypeError: .*unexpected keyword argument 'depth'"),
        (entrypoint("raising_model"), "tests.support.entrypoints:raising_model raised RuntimeError: no weights here"),
        (entrypoint("exiting_model"), "tests.support.entrypoints:exiting_model raised SystemExit: 3"),
        (entrypoint("no_module"), "returned a object, not a torch.nn.Module"),
        (entrypoint("half_model"), "parameter weight is torch.bfloat16, it must be torch.float32"),
        (entrypoint("frozen_model"), "no parameter that requires a gradient"),
        (entrypoint("lazy_model"), "model.entrypoint: 1.weight is lazy, without a shape; call the model once"),
        (entrypoint("sparse_model"), "model.entrypoint: 0 has sparse gradients; use sparse=False"),
        (
            entrypoint("overlapping_model"),
            "model.entrypoint: parameter weight has elements that share memory; make it of a copy",
        ),
        (
            entrypoint("two_on_one_storage"),
            "model.entrypoint: parameters a and b share memory; use one parameter for both",
        ),
        (entrypoint("filled_model", value=float("nan")), "parameter weight: its values go from nan to nan; "),
        (entrypoint("filled_model", value=1e30), r"parameter weight: its values go from 1e\+30 to 1e\+30; "),
        (
            entrypoint("meta_model"),
            "model.entrypoint: weight is on the meta device, without values; build it on the CPU",
        ),
    ],
)
def test_a_wrong_entrypoint_is_one_line_that_says_what_is_wrong(model: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError) as raised:
        build_model(small_job(model=model))
    assert re.search(message, str(raised.value))
    assert "\n" not in str(raised.value)


def test_a_model_from_fragments_has_their_parameters() -> None:
    job = small_job()
    model = build_model(job)
    layout = layout_of(model, 6)
    buffers = [torch.full((fragment.numel,), float(fragment.index)) for fragment in layout.fragments]
    made = model_from_fragments(job, layout, buffers)
    out = torch.empty(layout.fragments[4].numel)
    read_fragment(made, layout.fragments[4], out)
    assert torch.equal(out, buffers[4])


def test_another_base_than_was_trained_with_is_refused_at_the_end() -> None:
    job = small_job(model=entrypoint("tiny_model"), sync={"fragments": 1})
    layout = layout_of(build_model(job), 1)
    buffers = [torch.zeros(fragment.numel) for fragment in layout.fragments]
    model_from_fragments(job, layout, buffers)
    with pytest.raises(ModelError, match="model: has other frozen parameters or buffers than in training"):
        model_from_fragments(job, replace(layout, constants="other"), buffers)
