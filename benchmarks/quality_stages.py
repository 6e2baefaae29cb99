"""What the quality benchmark runs, most important first: an interruption leaves the most valuable tables complete."""

from typing import Final

from quality_variants import Stage

MAIN: Final = ("data_parallel", "data_parallel_muon", "decoupled", "muon", "muon_h6")
SMALLER: Final = ("muon_h12", "muon_h3", "muon_h6_int4")
ABLATIONS: Final = (
    "alone",
    "lock_step",
    "faults",
    "three",
    "cuts",
    "mean",
    "no_token_weights",
    "faults_no_token_weights",
    "int4",
    "int4_no_feedback",
)
"""What decoupled training with AdamW and H = 24 is made of, and what happens to it."""

STAGES: Final = (
    Stage("A", 400, ("data_parallel", "alone"), 5),
    Stage("A", 400, ("data_parallel_muon",), 5),
    Stage("A", 400, ("muon_h6", "muon", "decoupled"), 0),
    Stage("B", 400, ("data_parallel", "data_parallel_muon"), 5),
    Stage("batch 8", 800, ("data_parallel",), 0),
    Stage("batch 2", 3200, ("data_parallel",), 0),
    Stage("B", 400, ("muon_h6", "muon", "decoupled"), 0),
    Stage("B", 1600, ("data_parallel", "data_parallel_muon"), 5),
    Stage("batch 2", 800, ("data_parallel",), 0),
)
QUICK: Final = (Stage("batch 1", 32, ("data_parallel", "decoupled", "faults"), 2, searched=()),)
"""A smoke test."""
