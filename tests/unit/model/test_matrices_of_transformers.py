from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from diloco.model.fragments import hidden_matrices, trained_parameters

SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "intermediate_size": 24,
    "vocab_size": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ATTENTION = {"q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight"}
DENSE = {"gate_proj.weight", "up_proj.weight", "down_proj.weight"}
EXPERTS = {"gate.weight", "experts.gate_up_proj", "experts.down_proj"}
MIXTURE = {"num_experts_per_tok": 2, "num_local_experts": 4, "num_experts": 4, "moe_intermediate_size": 24}


@pytest.mark.parametrize(
    ("kind", "options", "names", "percent"),
    [
        ("llama", {}, ATTENTION | DENSE, 48),
        ("qwen3", {}, ATTENTION | DENSE, 48),
        ("mixtral", MIXTURE, ATTENTION | EXPERTS, 72),
        ("qwen3_moe", MIXTURE, ATTENTION | EXPERTS, 72),
        # Its A_log and its kernel have two and three dimensions, and are no maps.
        ("mamba", {"state_size": 4}, {"in_proj.weight", "x_proj.weight", "dt_proj.weight", "out_proj.weight"}, 51),
        (
            "gpt2",
            {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32},
            {"c_attn.weight", "c_proj.weight", "c_fc.weight"},
            63,
        ),
    ],
)
def test_muons_share(kind: str, options: dict[str, Any], names: set[str], percent: int) -> None:
    config = AutoConfig.for_model(kind, **{**SMALL, **options})
    module = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]  # transformers' own
    sizes = {name: parameter.numel() for name, parameter in trained_parameters(module).items()}
    found = hidden_matrices(module)
    assert {name for name in names if any(one.endswith(f".{name}") for one in found)} == names
    assert all(one.endswith(tuple(names)) for one in found)
    assert round(100 * sum(sizes[name] for name in found) / sum(sizes.values())) == percent
