from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from diloco.learner.training.optimizers import muon as of_muon
from diloco.learner.training.optimizers.optimizer import LearningRates, NamedOptimizer, OptimizerError
from diloco.model.build import build_model
from diloco.spec.training import InnerOptimizer, ParameterGroup
from tests.support.entrypoints import tiny_model
from tests.support.small_job import small_job

ADAMW = InnerOptimizer(beta1=0.8, beta2=0.95, epsilon=1e-6, weight_decay=0.2)
MUON = InnerOptimizer.model_validate(
    ADAMW.model_dump() | {"type": "Muon", "muon": {"momentum": 0.9, "weight_decay": 0.3}}
)
BOTH = pytest.mark.parametrize("options", [ADAMW, MUON], ids=lambda options: options.type)


def model() -> nn.Module:
    return build_model(small_job())


def rates_of(step: int, options: InnerOptimizer) -> LearningRates:
    """Rates that differ from step to step."""
    return {"AdamW": 0.01 / step, "Muon": 0.04 / step} if options.type == "Muon" else {"AdamW": 0.01 / step}


def backward(module: nn.Module, step: int) -> None:
    tokens = torch.randint(257, (2, 9), generator=torch.Generator().manual_seed(step))
    loss = functional.cross_entropy(module(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()  # type: ignore[no-untyped-call]  # torch's own


def train(module: nn.Module, optimizer: NamedOptimizer, options: InnerOptimizer, steps: Iterable[int]) -> None:
    for step in steps:
        backward(module, step)
        optimizer.step(rates_of(step, options))


def parameters(module: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters()]


def same_bits(one: Iterable[Tensor], other: Iterable[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def references(module: nn.Module, options: InnerOptimizer) -> list[torch.optim.Optimizer]:
    """torch's own optimizers, on tensors that the test itself sorts by their names."""
    named = dict(module.named_parameters())
    muon = [name for name in named if options.type == "Muon" and "blocks" in name and "norm" not in name]
    decayed = [tensor for name, tensor in named.items() if name not in muon and "norm" not in name]
    kept = [tensor for name, tensor in named.items() if "norm" in name]
    groups = [{"params": decayed, "weight_decay": 0.2}, {"params": kept, "weight_decay": 0.0}]
    made: list[torch.optim.Optimizer] = [torch.optim.AdamW(groups, betas=(0.8, 0.95), eps=1e-6, fused=True)]
    if muon:
        tensors = [named[name] for name in muon]
        made.append(torch.optim.Muon(tensors, momentum=0.9, weight_decay=0.3, adjust_lr_fn="match_rms_adamw"))
    return made


@BOTH
def test_many_steps_are_those_of_torchs_own_to_the_bit(
    options: InnerOptimizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_muon, "emulates_bf16", lambda _: False)
    module, reference = model(), model()
    train(module, NamedOptimizer(module, options), options, range(1, 6))
    torchs = references(reference, options)
    for step in range(1, 6):
        backward(reference, step)
        for optimizer, rate in zip(torchs, rates_of(step, options).values(), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad()
    assert same_bits(parameters(module), parameters(reference))
    assert not same_bits(parameters(module), parameters(model()))


@pytest.mark.parametrize("shape", [(48, 48), (64, 16), (3, 16, 64)])
def test_a_cpu_without_bf16_computes_the_same_in_f32(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    made = []
    for emulated in (True, False):
        monkeypatch.setattr(of_muon, "emulates_bf16", lambda _, emulated=emulated: emulated)
        made.append(of_muon.orthogonal(matrices))
    assert [one.dtype for one in made] == [torch.float32, torch.bfloat16]
    assert (made[0] - made[1].float()).norm() < 0.02 * made[0].norm()


def test_muon_keeps_one_moment_of_a_matrix_and_adamw_two_of_the_rest() -> None:
    module = model()
    optimizer = NamedOptimizer(module, MUON)
    assert optimizer.state() == {}
    train(module, optimizer, MUON, range(1, 2))
    state = optimizer.state()
    names = dict(module.named_parameters())
    hidden = {name for name in names if "blocks" in name and "norm" not in name}
    rest = names.keys() - hidden
    wanted = {f"momentum_buffer.{name}" for name in hidden}
    wanted |= {f"{kind}.{name}" for name in rest for kind in ("exp_avg", "exp_avg_sq", "step")}
    assert state.keys() == wanted
    for key, tensor in state.items():
        kind, _, name = key.partition(".")
        assert (tensor.shape, tensor.dtype) == (() if kind == "step" else names[name].shape, torch.float32)


def test_the_state_is_nobody_elses() -> None:
    module = model()
    optimizer = NamedOptimizer(module, MUON)
    train(module, optimizer, MUON, range(1, 2))
    state = optimizer.state()
    kept = {name: tensor.clone() for name, tensor in state.items()}
    train(module, optimizer, MUON, range(2, 4))
    assert same_bits(state.values(), kept.values())


class Uneven(nn.Module):
    """Parameters in another order in memory than by rows, and one that only even steps give a gradient."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embedding = nn.Embedding(257, 6)
        self.kernel = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
        self.turned = nn.Linear(8, 6)
        self.turned.weight = nn.Parameter(torch.randn(8, 6, generator=generator).t())
        self.sometimes = nn.Linear(6, 6)
        self.out = nn.Linear(6, 257)
        for parameter in self.parameters():
            with torch.no_grad():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 4)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        x = x + self.turned(torch.cat((x, x[..., :2]), -1).tanh())
        if tokens.sum() % 2 == 0:
            x = x + self.sometimes(x)
        x = x + self.kernel(x.reshape(-1, 3, 2, 1).expand(-1, -1, -1, 2)).sum()
        logits: Tensor = self.out(x)
        return logits


@BOTH
def test_a_restart_changes_no_bit_whatever_the_order_in_memory(options: InnerOptimizer) -> None:
    module, again = Uneven(), Uneven()
    assert not module.turned.weight.is_contiguous()
    optimizer = NamedOptimizer(module, options)
    train(module, optimizer, options, range(1, 8))
    state = optimizer.state()
    assert all(tensor.is_contiguous() for tensor in state.values())
    assert 0 < state["step.sometimes.bias"] < state["step.out.bias"] == 7
    with torch.no_grad():
        for here, there in zip(again.parameters(), module.parameters(), strict=True):
            here.copy_(there)
    restarted = NamedOptimizer(again, options)
    restarted.load_state(state, optimizer.steps)
    for one, of_it in ((module, optimizer), (again, restarted)):
        train(one, of_it, options, range(8, 14))
    assert same_bits(parameters(module), parameters(again))
    assert same_bits(optimizer.state().values(), restarted.state().values())


@pytest.mark.parametrize(("there", "here"), [(ADAMW, MUON), (MUON, ADAMW)], ids=["AdamW-Muon", "Muon-AdamW"])
def test_the_state_of_another_kind_is_refused_and_changes_nothing(there: InnerOptimizer, here: InnerOptimizer) -> None:
    module, other = model(), model()
    optimizer = NamedOptimizer(module, there)
    train(module, optimizer, there, range(1, 3))
    mine = NamedOptimizer(other, here)
    with pytest.raises(KeyError, match=r"\.blocks\."):
        mine.load_state(optimizer.state(), 2)
    assert (mine.steps, mine.state()) == (0, {})


def test_its_identity_tells_kind_and_matrices() -> None:
    fewer = muon(groups=[{"match": ["*.query.*"], "optimizer": "AdamW"}])
    named = [NamedOptimizer(model(), options).identity for options in (ADAMW, MUON, fewer)]
    assert named[0] == "AdamW"
    assert named[1].startswith("Muon on 18 matrices (")
    assert named[2].startswith("Muon on 15 matrices (")
    other_rates = muon(muon={"learningRate": 0.5}, groups=[{"match": ["*.key.*"], "learningRateScale": 2}])
    assert NamedOptimizer(model(), other_rates).identity == named[1]


class Mixture(nn.Module):
    """Three experts in a stack, or as three parameters."""

    def __init__(self, *, stacked: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(257, 6)
        self.out = nn.Linear(6, 257)
        generator = torch.Generator().manual_seed(0)
        values = [torch.randn(shape, generator=generator) / 4 for shape in ((257, 6), (257, 6), (257,), (3, 4, 6))]
        with torch.no_grad():
            for parameter, value in zip(self.parameters(), values, strict=False):
                parameter.copy_(value)
        self.stack = nn.Parameter(values[3]) if stacked else None
        self.single = nn.ModuleList() if stacked else nn.ModuleList(nn.Linear(6, 4, bias=False) for _ in "123")
        for expert, value in zip(self.single, values[3], strict=False):
            expert.get_parameter("weight").data = value.clone()

    @property
    def matrices(self) -> list[Tensor]:
        return [one.get_parameter("weight") for one in self.single] if self.stack is None else list(self.stack)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for matrix in self.matrices:
            x = x + functional.linear(functional.linear(x, matrix).tanh(), matrix.T)
        logits: Tensor = self.out(x)
        return logits


def test_muon_trains_a_stack_as_it_trains_its_matrices_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    stack, single = Mixture(stacked=True), Mixture(stacked=False)
    for module in (stack, single):
        optimizer = NamedOptimizer(module, MUON)
        train(module, optimizer, MUON, range(1, 6))
    assert not same_bits(stack.matrices, Mixture(stacked=True).matrices)
    for one, other in zip(stack.matrices, single.matrices, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    assert caplog.messages == ["Muon trains 3 matrices, 2 % of the parameters"] * 2


def test_a_model_of_hidden_matrices_alone_needs_no_adamw() -> None:
    class OneHot(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(257, 8, bias=False)
            self.weight = nn.Parameter(torch.full((8, 257), 0.1))

        def forward(self, tokens: Tensor) -> Tensor:
            logits: Tensor = self.first(functional.one_hot(tokens, 257).float()) @ self.weight
            return logits

    module = OneHot()
    optimizer = NamedOptimizer(module, MUON)
    before = parameters(module)
    train(module, optimizer, MUON, range(1, 3))
    assert optimizer.state().keys() == {"momentum_buffer.first.weight", "momentum_buffer.weight"}
    assert not any(torch.equal(one, other) for one, other in zip(before, parameters(module), strict=True))


@BOTH
def test_a_group_has_its_own_rate_decay_and_optimizer(options: InnerOptimizer) -> None:
    module, whole = Uneven(), Uneven()
    first = {"match": ["out.*"], "learningRateScale": 0.5, "weightDecay": 0}
    # The first that matches counts: nothing here is the output layer's.
    second = {"match": ["out.weight", "embedding.*"], "learningRateScale": 4, "weightDecay": 0.9}
    third = {"match": ["turned.weight"]} | ({"optimizer": "AdamW"} if options.type == "Muon" else {})
    groups = [ParameterGroup.model_validate(one) for one in (first, second, third)]
    grouped = options.model_copy(update={"groups": tuple(groups)})
    before = dict(zip(dict(module.named_parameters()), parameters(module), strict=True))
    for one, chosen in ((module, grouped), (whole, options)):
        train(one, NamedOptimizer(one, chosen), chosen, [2])
    rate, alike = 0.01 / 2, dict(whole.named_parameters())
    for name, parameter in module.named_parameters():
        sign = (before[name] * (1 - rate * (0.2 if parameter.dim() > 1 else 0)) - alike[name]) / rate
        own = {"out": (0.5, 0.0), "embedding": (4.0, 0.9)}.get(name.partition(".")[0])
        if own is None:
            same = torch.equal(parameter, alike[name])
            assert same == (options.type == "AdamW" or name != "turned.weight"), name
        else:
            scale, decay = own
            wanted = before[name] * (1 - rate * scale * decay) - rate * scale * sign
            torch.testing.assert_close(parameter.detach(), wanted, rtol=0, atol=1e-6)


class TestRefusals:
    def _line(self, module: nn.Module, options: InnerOptimizer) -> str:
        with pytest.raises(OptimizerError) as raised:
            NamedOptimizer(module, options)
        assert "\n" not in str(raised.value)
        return str(raised.value)

    def test_a_model_without_a_hidden_matrix(self) -> None:
        module = nn.Sequential(nn.Embedding(257, 8), nn.Linear(8, 257))
        line = self._line(module, MUON)
        assert line == (
            "training.optimizer.type: Muon trains hidden matrices, and the model has none (weights that map "
            "features to features, neither embedding nor output layer); use AdamW"
        )

    def test_a_model_of_which_nothing_is_left(self) -> None:
        line = self._line(tiny_model(), muon(groups=[{"match": ["middle.*"], "optimizer": "AdamW"}]))
        assert "and with training.optimizer.groups the model has none" in line

    def test_a_group_of_muons_with_a_vector(self) -> None:
        line = self._line(tiny_model(), muon(groups=[{"match": ["middle.*"], "optimizer": "Muon"}]))
        assert line == (
            "training.optimizer.groups: Muon trains matrices and stacks of them, and middle.bias has 1 dimensions; "
            "match it in an earlier group, or use AdamW"
        )

    def test_a_pattern_that_matches_nothing(self) -> None:
        groups = [{"match": ["middle.bias"]}, {"match": ["*.bias", "midle.*"]}]
        line = self._line(tiny_model(), InnerOptimizer.model_validate({"groups": groups}))
        assert line == (
            "training.optimizer.groups[1].match[1]: midle.* matches none of the model's 3 trained parameters, "
            "embedding.weight among them; correct or remove it"
        )


def muon(**options: Any) -> InnerOptimizer:
    return InnerOptimizer.model_validate({"type": "Muon", **options})
