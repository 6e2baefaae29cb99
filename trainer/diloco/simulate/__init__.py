"""Simulates whole runs in one process and in virtual time: the same engine, merges and training, without sockets.

The simulated syncer and learners carry out the engine's actions as the real ones do, but a heap of scheduled callbacks
replaces threads, links and clocks. So a run with stragglers, kills and cut links is the same to the bit each time, and
waiting takes no time; only the training itself is computed.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from diloco.simulate.checks import ScenarioError
from diloco.simulate.scenario import Cut, Kill, Link, Profile, Scenario
from diloco.simulate.world import SimulationError

if TYPE_CHECKING:
    from diloco.simulate.training.trained import Outcome, simulate

__all__ = ["Cut", "Kill", "Link", "Outcome", "Profile", "Scenario", "ScenarioError", "SimulationError", "simulate"]


def __getattr__(name: str) -> object:
    # On demand: a run that is only counted needs no torch.
    if name in ("Outcome", "simulate"):
        return getattr(import_module("diloco.simulate.training.trained"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
