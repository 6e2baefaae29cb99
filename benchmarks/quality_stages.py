"""What the quality benchmark runs, most important first: an interruption leaves the most valuable tables complete."""

from typing import Final

from quality_variants import Stage

STAGES: Final = (
    Stage("A", 400, ("data_parallel", "data_parallel_muon", "alone"), 5),
    Stage("A", 400, ("muon_h6", "muon", "decoupled"), 5),
    Stage("B", 400, ("data_parallel", "data_parallel_muon", "muon_h6", "muon", "decoupled"), 5),
    Stage("A", 400, ("muon_h12", "muon_h6_int4"), 5),
    Stage("batch 8", 800, ("data_parallel",), 0),
    Stage("B", 1600, ("data_parallel",), 0),
    Stage("batch 2", 3200, ("data_parallel",), 0),
)
QUICK: Final = (Stage("batch 1", 32, ("data_parallel", "decoupled", "faults"), 2, searched=()),)
"""A smoke test."""
