"""Simulates whole runs in one process and in virtual time: the same engine, merges and training, without sockets.

The simulated syncer and learners carry out the engine's actions as the real ones do, but a heap of scheduled callbacks
replaces threads, links and clocks. So a run with stragglers, kills and cut links is the same to the bit each time, and
waiting takes no time; only the training itself is computed.
"""

from diloco.simulate.baselines import Baseline, alone, data_parallel
from diloco.simulate.counted import layout_of_sizes
from diloco.simulate.scenario import Cut, Fault, Kill, Link, Profile, Scenario, ScenarioError, faults_every
from diloco.simulate.world import Course, Outcome, SimulationError, simulate, simulate_course

__all__ = [
    "Baseline",
    "Course",
    "Cut",
    "Fault",
    "Kill",
    "Link",
    "Outcome",
    "Profile",
    "Scenario",
    "ScenarioError",
    "SimulationError",
    "alone",
    "data_parallel",
    "faults_every",
    "layout_of_sizes",
    "simulate",
    "simulate_course",
]
