"""Known models, by their published dimensions, without memory for them."""

import json
from pathlib import Path
from typing import Any

import pytest

from diloco.model.build import layout_of_job
from diloco.plan.plan import make_plan
from diloco.plan.world import RegionLink, World
from diloco.simulate import Link, Profile, Scenario
from diloco.simulate.world import simulate_course
from diloco.spec import JobSpec
from tests.support.small_job import named_job, small_job

STEP_SECONDS = 2.0
ARCHITECTURES = {
    "gemma3_text": "Gemma3ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
}

SIZES: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma-3-1b": (
        "gemma3_text",
        {
            "vocab_size": 262_144,
            "hidden_size": 1152,
            "intermediate_size": 6912,
            "num_hidden_layers": 26,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "tie_word_embeddings": True,
        },
    ),
    "gemma-3-12b": (
        "gemma3_text",
        {
            "vocab_size": 262_144,
            "hidden_size": 3840,
            "intermediate_size": 15_360,
            "num_hidden_layers": 48,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 256,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3-0.6b": (
        "qwen3",
        {
            "vocab_size": 151_936,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "tie_word_embeddings": True,
        },
    ),
    "gpt2": ("gpt2", {}),
    "llama-3-8b": (
        "llama",
        {
            "vocab_size": 128_256,
            "hidden_size": 4096,
            "intermediate_size": 14_336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "tie_word_embeddings": False,
        },
    ),
}
PARAMETERS = {
    "gemma-3-1b": 999_885_952,
    "gemma-3-12b": 11_765_788_416,
    "qwen3-0.6b": 596_049_920,
    "gpt2": 124_439_808,
    "llama-3-8b": 8_030_261_248,
}


def in_steps(spec: JobSpec, steps: int) -> JobSpec:
    """The job, until each of its two learners has made about so many steps."""
    training = spec.training.model_copy(update={"tokens": steps * 2 * 64})
    return spec.model_copy(update={"training": training})


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a config.json for each model."""
    root = tmp_path_factory.mktemp("models")
    for name, (kind, dimensions) in SIZES.items():
        config = {"model_type": kind, "architectures": [ARCHITECTURES[kind]], **dimensions}
        (root / name).mkdir()
        (root / name / "config.json").write_text(json.dumps(config))
    return root


@pytest.mark.parametrize("name", SIZES)
def test_fragments_are_even_and_as_much_is_merged_as_planned(name: str, folders: Path) -> None:
    given = {"huggingface": {"path": str(folders / name)}}
    layout = layout_of_job(small_job(model=given, sync={"fragments": 24}))
    assert layout.numel == PARAMETERS[name]
    assert max(layout.shares) <= 1.4 / 24
    link_rate = 4 * layout.numel / (24 * STEP_SECONDS) / 0.6  # used to 60 % on the way down
    regions = [{"name": name, "connections": 64, "pools": [{"name": "a"}]} for name in ("east", "west")]
    spec = small_job(model={"entrypoint": "mine:make"}, regions=regions, sync={"interval": 24})
    world = World(
        {one.name: RegionLink(link_rate, 0.02) for one in spec.regions},
        step_seconds=dict.fromkeys(spec.pools, STEP_SECONDS),
    )
    made = make_plan(named_job("planned", spec), world, layout.numels)
    profile = Profile(STEP_SECONDS, link=Link(0.01, link_rate))
    scenario = Scenario(
        dict.fromkeys(spec.learner_ids, profile), merge_seconds=made.situation.merge_seconds, deadline_seconds=1e6
    )
    # What the longer run adds has neither a beginning nor an end.
    short, long = (
        simulate_course(named_job("planned", in_steps(spec, steps)), scenario, layout).view for steps in (72, 168)
    )
    trained = [sum(learner.tokens for learner in view.learners) for view in (short, long)]
    simulated = (long.merged_tokens - short.merged_tokens) / (trained[1] - trained[0])
    assert made.fit.fits
    assert made.fit.merged_share == pytest.approx(simulated, abs=0.05)
    beside = made.data_parallel
    assert beside is not None
    assert beside.all_reduce_seconds == pytest.approx(4 * layout.numel / link_rate)  # 2 (M - 1) / M is 1
