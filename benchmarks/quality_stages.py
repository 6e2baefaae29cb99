"""What the quality benchmark runs, most important first: an interruption leaves the most valuable tables complete."""

from typing import Final

from quality_variants import Stage

MAIN: Final = ("data_parallel", "data_parallel_muon", "muon_h6", "muon", "decoupled")

STAGES: Final = (
    Stage("A", 400, ("data_parallel", "data_parallel_muon", "alone"), 5),
    Stage("A", 400, ("muon_h6", "muon", "decoupled"), 5),
    Stage("A", 400, ("muon_h6_thin",), 5),
    Stage("B", 400, ("data_parallel", "data_parallel_muon", "muon_h6", "muon", "decoupled"), 5),
    Stage("A", 400, ("faults", "three", "muon_h12"), 3),
    Stage("B", 400, ("faults", "three", "muon_h6_thin", "muon_h12"), 3),
    Stage("batch 8", 800, ("data_parallel",), 0),
    Stage("B", 1600, ("data_parallel",), 0),
    Stage("batch 2", 3200, ("data_parallel",), 0),
    Stage("A", 400, ("lock_step", "cuts", "mean", "int4", "int8_down", "muon_h3", "faults_no_token_weights"), 3),
    Stage("B", 1600, (*MAIN, "muon_h6_thin"), 5, searched=("data_parallel",)),
    Stage("A", 1600, (*MAIN, "muon_h6_thin"), 5, searched=()),
    Stage("B", 6400, MAIN, 2, searched=()),
    Stage("A", 6400, MAIN, 2, searched=()),
    Stage("nano", 400, MAIN, 1),
)
QUICK: Final = (Stage("batch 1", 32, ("data_parallel", "decoupled", "faults"), 2, searched=()),)
"""A smoke test."""
