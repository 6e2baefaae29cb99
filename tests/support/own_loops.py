"""Loops of the user's own, valid and invalid ones, and what stands for the learner around one."""

import contextlib
import random
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import nn

import diloco
from diloco.learner.exchange.orders import Ending, EndKind, Orders, Wakeup
from diloco.learner.job_training import Training
from diloco.learner.session.own_loop import OwnLoop
from diloco.model.logits import cross_entropy
from tests.support.small_learner import learner_options

if TYPE_CHECKING:
    from diloco.learner.session.trainer import SessionTrainer

ENOUGH = Ending(EndKind.FINISHED, "enough")


class Stage:
    """Stands for the learner of one process, around a loop of this file by its name."""

    def __init__(
        self, folder: Path, loop: str, model: str = "tests.support.entrypoints:tiny_model", **arguments: Any
    ) -> None:
        spec = {
            "model": {"entrypoint": model},
            "data": {},
            "loop": {"entrypoint": f"tests.support.own_loops:{loop}", "arguments": arguments},
            "training": {"tokens": 100_000, "sequenceLength": 16, "batchSize": 4},
            "sync": {"fragments": 2},
        }
        self.options = learner_options(folder, spec, device="cpu")
        self.orders = Orders(Wakeup())
        self.on_begin: Callable[[SessionTrainer], object] = lambda _: None
        self.after_step: Callable[[SessionTrainer], object] = lambda trainer: trainer.steps >= 3
        """What happens after a step; true: the job is over."""
        self.results: list[Any] = []
        self.endings: list[Ending] = []
        self.trainer: SessionTrainer = cast("Any", None)

    def run(self) -> Ending:
        """Call the loop until the end."""
        return OwnLoop(self.options, torch.device("cpu"), self.orders, cast("Any", self._begin)).run()

    def _begin(self, training: Training) -> SimpleNamespace:
        self.trainer = cast("SessionTrainer", training.trainer)
        loop = SimpleNamespace(begin=self._loop_begins, after_step=self._stepped, ending=self.orders.ending)
        return SimpleNamespace(start=lambda: None, loop=loop, finish=self.endings.append)

    def _loop_begins(self) -> Ending | None:
        self.on_begin(self.trainer)
        return self.orders.ending()

    def _stepped(self, result: object) -> Ending | None:
        self.results.append(result)
        return ENOUGH if self.after_step(self.trainer) else self.orders.ending()


class Numbers:
    """Batches of tokens, and the place in them."""

    def __init__(self) -> None:
        self.place = 0

    def take(self) -> torch.Tensor:
        self.place += 1
        return torch.randint(257, (4, 17), generator=torch.Generator().manual_seed(self.place))

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return cross_entropy(model(tokens[:, :-1]), tokens[:, 1:]) / tokens[:, 1:].numel()


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """As the built-in optimizer with its defaults."""
    trained = [one for one in model.parameters() if one.requires_grad]
    groups = [
        {"params": [one for one in trained if (one.dim() >= 2) is matrices], "weight_decay": 0.1 * matrices}
        for matrices in (True, False)
    ]
    return torch.optim.AdamW(groups, lr=2e-3, betas=(0.9, 0.99), eps=1e-8, fused=True)


def plain(model: nn.Module) -> None:
    """What the built-in loop does, with a warm-up of 20 steps."""
    numbers, optimizer = Numbers(), adamw(model)
    held_out = torch.arange(34).view(2, 17)
    session = diloco.session(model, optimizer, evaluate=lambda model: loss_of(model, held_out))
    session.saved["numbers"] = numbers
    with session:
        goes_on = True
        while goes_on:
            for group in optimizer.param_groups:
                group["lr"] = 2e-3 * min(1.0, (session.steps + 1) / 20)
            loss = loss_of(model, numbers.take())
            loss.backward()  # type: ignore[no-untyped-call]  # torch's own
            norm = nn.utils.clip_grad_norm_([one for one in model.parameters() if one.requires_grad], 1.0)
            optimizer.step()
            optimizer.zero_grad()
            goes_on = session.step(loss.detach(), norm)


SCHEDULE: Callable[[torch.optim.Optimizer], Any] = cast("Any", None)
"""Makes that of ``scheduled``."""


def scheduled(model: nn.Module) -> None:
    """Steps with a learning-rate schedule of torch."""
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1.0)
    session = _session(model, optimizer=optimizer)
    schedule = session.saved["schedule"] = SCHEDULE(optimizer)
    with session:
        goes_on = True
        while goes_on:
            for group in optimizer.param_groups:
                for one in group["params"]:
                    one.grad = torch.ones_like(one)
            optimizer.step()
            schedule.step(*[1.0] * isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau))
            goes_on = session.step()


def _session(model: nn.Module, **changes: Any) -> diloco.Session:
    given: dict[str, Any] = {
        "model": model,
        "optimizer": torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.1),
        "evaluate": lambda _: 0.0,
    }
    return diloco.session(**given | changes)


def _stepped(session: diloco.Session, *told: Any, steps: int = 1, **named: Any) -> bool:
    """Make ``steps`` of each optimizer, without gradients, and tell the session."""
    for _ in range(steps):
        for one in session._trainer._parts.optimizers:
            one.step()
    return session.step(*told, **named)


OPTIMIZERS: Callable[[list[nn.Parameter]], Any] = cast("Any", None)
"""Makes those of ``trains_with``."""


def trains_with(model: nn.Module) -> None:
    """Steps on noise, by one optimizer or several."""
    made = OPTIMIZERS([one for one in model.parameters() if one.requires_grad])
    session = _session(model, optimizer=made)
    noise, choice = torch.Generator(), random.Random(3)
    session.saved |= {"noise": noise.manual_seed(session.seed), "choice": cast("Any", choice)}
    loss = torch.zeros(())
    with session:
        goes_on = True
        while goes_on:
            tokens = torch.randint(choice.randrange(2, 257), (4, 17), generator=noise)

            @torch.enable_grad()
            def closure(tokens: torch.Tensor = tokens) -> torch.Tensor:
                model.zero_grad()
                loss = loss_of(model, tokens)
                loss.backward()  # type: ignore[no-untyped-call]  # torch's own
                return loss

            for one in made if isinstance(made, list) else [made]:
                loss = one.step(closure)
            goes_on = session.step(loss)


def changes_a_buffer(model: nn.Module) -> None:
    with _session(model) as session:
        while _stepped(session):
            model.get_buffer("mean").add_(1.0)


def steps(model: nn.Module, counts: list[int]) -> None:
    """Calls of ``step()`` after these numbers of steps of the optimizer."""
    with _session(model) as session:
        for count in counts:
            _stepped(session, steps=count)


class DoublyCounted(torch.optim.SGD):
    """As the hooks see it: its own step and that of its base."""

    def step(self, closure: Any = None) -> Any:
        """As a user's subclass does that adds something."""
        return super().step(closure)


def steps_twice_nested(model: nn.Module) -> None:
    torch.optim.SGD(model.parameters())  # makes the base's step() call hooks
    trained = [one for one in model.parameters() if one.requires_grad]
    with _session(model, optimizer=DoublyCounted(trained, lr=0.1)) as session:
        while _stepped(session):
            pass


def goes_on(model: nn.Module, what: str) -> None:
    """Whatever a session says or raises."""
    with _session(model, evaluate=lambda _: None) as session:
        while True:
            if what == "ignores the end":
                _stepped(session)
            else:
                with contextlib.suppress(Exception):
                    _stepped(session)


class Noted(torch.optim.SGD):
    """Keeps what is no number or tensor."""

    def step(self, closure: Any = None) -> Any:
        """Keep it."""
        for one in self.param_groups[0]["params"]:
            self.state[one]["note"] = object()
        return super().step(closure)


def keeps_an_object(model: nn.Module) -> None:
    with _session(model, optimizer=Noted([one for one in model.parameters() if one.requires_grad])) as session:
        _stepped(session)


def faulty(model: nn.Module, what: str) -> None:
    """A loop with one mistake."""
    _FAULTY.get(what, _uses)(model, what)


def _raises(_model: nn.Module, _what: str) -> None:
    raise RuntimeError("shapes differ")


def _raises_inside(model: nn.Module, what: str) -> None:
    with _session(model):
        _raises(model, what)


def _raises_later(model: nn.Module, _what: str) -> None:
    with _session(model) as session:
        _stepped(session)
        raise RuntimeError("a worker was killed")


def _unfreezes(model: nn.Module, what: str) -> None:
    for one in list(model.parameters())[:-1]:
        one.requires_grad_(what == "unfreezes")
    _session(model)


def _tells(what: str) -> dict[str, Any]:
    told: dict[str, dict[str, Any]] = {
        "two losses": {"loss": torch.ones(2)},
        "text as loss": {"loss": "low"},
        "text as norm": {"gradient_norm": {}},
    }
    return told.get(what, {})


def tells(model: nn.Module) -> None:
    """Numbers as libraries have them."""
    with _session(model, evaluate=lambda _: np.float32(0.5)) as session:
        _stepped(session, torch.ones((), requires_grad=True) * 2)
        _stepped(session, gradient_norm=cast("Any", np.float32(0.5)))
        _stepped(session, float("inf"))


def _exits(_model: nn.Module, _what: str) -> None:
    raise SystemExit(3)


def _returns(model: nn.Module, _what: str) -> None:
    with _session(model) as session:
        _stepped(session)


def _idle(model: nn.Module, _what: str) -> None:
    with _session(model) as session:
        while session.step():
            pass


def _twice(model: nn.Module, _what: str) -> None:
    _session(model)
    _session(model)


def _entered_twice(model: nn.Module, _what: str) -> None:
    with _session(model) as session, session:
        pass


def _part(model: nn.Module, _what: str) -> None:
    _session(model, optimizer=torch.optim.SGD([next(model.parameters())], lr=0.1))


def _afterwards(model: nn.Module, _what: str) -> None:
    with _session(model) as session:
        pass
    session.step()


def _thread(model: nn.Module, _what: str) -> None:
    """As a framework might that catches everything."""

    def step() -> None:
        with contextlib.suppress(ValueError):
            session.step()

    with _session(model) as session:
        thread = threading.Thread(target=step)
        thread.start()
        thread.join()


def _uses(model: nn.Module, what: str) -> None:
    session = _session(model, evaluate=lambda _: None)
    session.saved.update(WRONG.get(what, {}))
    with session:
        while _stepped(session, **_tells(what)):
            pass


_FAULTY: dict[str, Callable[[nn.Module, str], object]] = {
    "raises": _raises,
    "raises inside": _raises_inside,
    "raises later": _raises_later,
    "unfreezes": _unfreezes,
    "freezes": _unfreezes,
    "exits": _exits,
    "no session": lambda _model, _what: None,
    "not entered": lambda model, _: _session(model),
    "returns": _returns,
    "idle": _idle,
    "twice": _twice,
    "entered twice": _entered_twice,
    "other model": lambda _model, _what: _session(nn.Linear(2, 2)),
    "no optimizer": lambda model, _: _session(model, optimizer=model),
    "no optimizers": lambda model, _: _session(model, optimizer=[]),
    "held twice": lambda model, _: _session(model, optimizer=[adamw(model), adamw(model)]),
    "part of it": _part,
    "outside": lambda model, _: _session(model).step(),
    "afterwards": _afterwards,
    "thread": _thread,
}


def stops_by_itself(model: nn.Module, *, session_first: bool) -> None:
    """Raises once the process is to stop, as a framework with a handler of its own does."""
    if session_first:
        with _session(model) as session:
            while _stepped(session):
                pass
    raise KeyError("SIGTERM")


class _State:
    def __init__(self, state: Any) -> None:
        self._state = state

    def state_dict(self) -> Any:
        return self._state

    def load_state_dict(self, state: Any) -> None:
        raise KeyError(str(state))


WRONG: dict[str, dict[str, Any]] = {
    "a loader": {"data": torch.utils.data.DataLoader(cast("Any", [1]))},
    "a number": {"epoch": 3},
    "an object": {"data": _State({"place": [1, object()]})},
    "raises there": {"data": SimpleNamespace(state_dict=lambda: 1 / 0, load_state_dict=print)},
    "loads": {"data": _State({"place": 1})},
}


def model_with_a_mean() -> nn.Module:
    model = nn.Linear(2, 2)
    model.register_buffer("mean", torch.zeros(2))
    return model
