"""Known models, by their published dimensions, without memory for them."""

import json
from pathlib import Path
from typing import Any

import pytest

from diloco.model.build import layout_of_job
from diloco.plan.plan import make_plan
from diloco.simulate import Link, Profile, Scenario
from diloco.simulate.world import simulate_course
from diloco.spec import JobSpec
from diloco.world.reading import read_world
from tests.support.small_job import named_job, small_job

STEP_SECONDS = 2.0


def dimensions(
    vocabulary: int, width: int, inner: int, layers: int, heads: tuple[int, int, int], *, tied: bool = True
) -> dict[str, Any]:
    """``heads``: of queries, of keys, and how wide each is."""
    queries, keys, head = heads
    return {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": queries,
        "num_key_value_heads": keys,
        "head_dim": head,
        "tie_word_embeddings": tied,
    }


GEMMA, QWEN = ("gemma3_text", "Gemma3ForCausalLM"), ("qwen3", "Qwen3ForCausalLM")
GPT2, LLAMA = ("gpt2", "GPT2LMHeadModel"), ("llama", "LlamaForCausalLM")
MODELS: dict[str, tuple[tuple[str, str], dict[str, Any], int]] = {
    "gemma-3-1b": (GEMMA, dimensions(262_144, 1152, 6912, 26, (4, 1, 256)), 999_885_952),
    "gemma-3-12b": (GEMMA, dimensions(262_144, 3840, 15_360, 48, (16, 8, 256)), 11_765_788_416),
    "qwen3-0.6b": (QWEN, dimensions(151_936, 1024, 3072, 28, (16, 8, 128)), 596_049_920),
    "gpt2": (GPT2, {}, 124_439_808),
    "llama-3-8b": (LLAMA, dimensions(128_256, 4096, 14_336, 32, (32, 8, 128), tied=False), 8_030_261_248),
}
"""By name: kind and architecture, dimensions, and the number of parameters."""


def in_steps(spec: JobSpec, steps: int) -> JobSpec:
    """The job, until each of its two learners has made about so many steps."""
    training = spec.training.model_copy(update={"tokens": steps * 2 * 64})
    return spec.model_copy(update={"training": training})


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a config.json for each model."""
    root = tmp_path_factory.mktemp("models")
    for name, ((kind, architecture), given, _) in MODELS.items():
        config = {"model_type": kind, "architectures": [architecture], **given}
        (root / name).mkdir()
        (root / name / "config.json").write_text(json.dumps(config))
    return root


@pytest.mark.parametrize("name", MODELS)
def test_fragments_are_even_and_as_much_is_merged_as_planned(name: str, folders: Path) -> None:
    given = {"huggingface": {"path": str(folders / name)}}
    layout = layout_of_job(small_job(model=given, sync={"fragments": 24}))
    assert layout.numel == MODELS[name][2]
    assert max(layout.shares) <= 1.4 / 24
    link_rate = 4 * layout.numel / (24 * STEP_SECONDS) / 0.6  # used to 60 % on the way down
    regions = [{"name": name, "connections": 64, "pools": [{"name": "a"}]} for name in ("east", "west")]
    spec = small_job(model={"entrypoint": "mine:make"}, regions=regions, sync={"interval": 24})
    world = read_world(spec, [f"*={link_rate:.0f}B/s,20ms"], [f"*={STEP_SECONDS}"])
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
