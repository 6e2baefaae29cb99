"""Learners in an engine's world that answer, decline, report, apply and join as they like."""

from dataclasses import dataclass

from hypothesis import strategies as st

from diloco.core.engine.events import FragmentApplied, FragmentArrived, FragmentDeclined, StepReported
from tests.support.engine_checks import TOKENS_PER_STEP, Process, key_of
from tests.support.engine_world import World

ACTS = ("report", "answer", "odd", "late", "wrong", "decline", "apply", "ahead", "rejoin", "replace", "evaluate")
Acts = tuple[tuple[str, ...], ...]
"""By turn: what a liar does. It begins again after the last."""


@dataclass(frozen=True)
class Liar:
    """What a learner does."""

    acts: Acts
    every_seconds: float = 1.0
    """Between two turns."""
    steps: int = 1
    """In a report."""
    step_seconds: float = 1.0
    """That it says a step takes."""
    pushes: int = 1
    """Steps in a push."""
    loads: bool = True
    """Whether it says that it has loaded the model."""

    def turn(self, world: World, learner: str, number: int) -> None:
        """Do what comes next."""
        for act in self.acts[number % len(self.acts)]:
            process = world.processes[learner]
            if not world.current(process):
                world.join(learner, another=False)
                process = world.processes[learner]
            if world.current(process):
                self._do(world, process, act)

    def _do(self, world: World, process: Process, act: str) -> None:  # noqa: C901, PLR0912 - a table of acts
        learner, incarnation = process.learner, process.incarnation
        if not process.training:
            if self.loads:
                world.load(process)
            return
        match act:
            case "report":
                process.steps += self.steps
                tokens = process.steps * TOKENS_PER_STEP
                said = (process.steps, tokens, self.step_seconds, 2.0, process.steps)
                world.do(StepReported(learner, incarnation, *said))
            case "answer" | "odd" | "wrong":
                for fragment, ask in sorted(process.asks.items()):
                    if act == "odd" and ask.version % 2 == 0:
                        continue
                    del process.asks[fragment]
                    base = max(0, ask.version - (3 if act == "wrong" else 1))
                    steps = min(self.pushes, world.options.max_staleness_steps)
                    work = (base, steps, steps * TOKENS_PER_STEP, 64)
                    world.push(FragmentArrived(*key_of(ask), *work, f"{len(world.pushed):032x}"))
            case "late":
                for old in [ask for one in world.over[-3:] for ask in one.asks.values() if one.learner == learner]:
                    world.do(FragmentDeclined(*key_of(old)))
            case "decline":
                for fragment, ask in sorted(process.asks.items()):
                    del process.asks[fragment]
                    world.do(FragmentDeclined(*key_of(ask)))
            case "apply" | "ahead":
                ahead = 1000 if act == "ahead" else 0
                for fragment, version in sorted(process.news.items()):
                    del process.news[fragment]
                    process.versions[fragment], process.received_at[fragment] = version, process.steps
                    world.do(FragmentApplied(learner, incarnation, fragment, version, process.steps + ahead))
            case "rejoin" | "replace":
                world.leave(process, clean=False)
                world.join(learner, another=act == "replace")
            case "evaluate" if process.evaluation is not None:
                world.evaluated(process, 2.0, exact=True)
            case _:
                pass


def liars() -> st.SearchStrategy[Liar]:
    """Any liar, which does something in every turn."""
    turns = st.lists(st.lists(st.sampled_from(ACTS), max_size=4).map(tuple), min_size=1, max_size=4)
    return st.builds(
        Liar,
        turns.map(tuple),
        st.sampled_from([1.0, 0.5, 0.125]),
        st.sampled_from([1, 1, 4, 25]),
        st.sampled_from([0.0, 0.05, 1.0, 3.0]),
        st.sampled_from([1, 4, 18]),
        st.sampled_from([True, True, True, False]),
    )
