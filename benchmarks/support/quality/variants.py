"""What the benchmark `quality` compares: workloads, variants, which of them are run, and in which order.

All of it is data; `runs` carries runs out, `plan` says which are due.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Literal

from support.quality.changing_interval import Change

LEARNERS: Final = 4
SEQUENCE_TOKENS: Final = 64
STEP_SECONDS: Final = 0.5
"""Virtual: 400 inner steps are 200 s, long enough for a kill a minute to be felt."""
JITTER: Final = 0.05
RESTART_SECONDS: Final = 10.0
CUT_SECONDS: Final = 18.0
FRAGMENTS: Final = 24
"""P, at every H: pico has 24 tensors, and with smaller fragments less is in flight."""
HELDOUT_SEQUENCES: Final = 1024
MEAN_SHARE: Final = 0.06
"""As ``sync.averageLast`` is by default; data-parallel training is given the same."""
CHOICE_SEED: Final = 100
"""Rates are chosen on a seed that no table uses."""

WORLDS: Final = {
    "calm": "every learner at one speed",
    "faults": "the last learner at half speed, and every minute a learner is killed and starts again 10 s later",
    "cuts": "every minute a learner's link is cut for 18 s, longer than an interval",
    "uneven": "the learners at 1, 0.82, 0.5 and 0.25 of full speed",
}
UNEVEN_SPEEDS: Final = (1.0, 0.82, 0.5, 0.25)


@dataclass(frozen=True, slots=True)
class Workload:
    """Model and batch."""

    preset: str
    sequences: int
    """In an inner step of one learner."""

    @property
    def step_tokens(self) -> int:
        return self.sequences * SEQUENCE_TOKENS


WORKLOADS: Final[Mapping[str, Workload]] = {
    "A": Workload("pico", 16),
    "B": Workload("pico", 4),
    "nano": Workload("nano", 4),
    "batch 8": Workload("pico", 8),
    "batch 2": Workload("pico", 2),
    "batch 1": Workload("pico", 1),
}
"""By name. In A data-parallel training is short of steps, in B it is not; the others show that."""

LADDERS: Final[Mapping[str, tuple[float, ...]]] = {
    "adamw": (1e-3, 1.4e-3, 2e-3, 2.8e-3, 4e-3, 5.7e-3, 8e-3, 11.3e-3, 16e-3, 22.6e-3, 32e-3, 45e-3, 64e-3, 90e-3),
    "muon": (2e-3, 2.8e-3, 4e-3, 5.7e-3, 8e-3, 11.3e-3, 16e-3, 22.6e-3, 32e-3, 45e-3, 64e-3, 90e-3, 128e-3, 181e-3),
    "effective": (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 7.0),
    "momentum": (0.0, 0.3, 0.5, 0.7, 0.8, 0.9),
}
"""What a search may choose, by part of a `Rates`."""


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates that are chosen for a method."""

    adamw: float
    """Inner learning rate of AdamW: of everything, or beside Muon of what is no hidden matrix."""
    muon: float | None = None
    """Inner learning rate of Muon."""
    effective: float | None = None
    """Outer learning rate over (1 - momentum): what a step amounts to once the momentum has built up."""
    momentum: float | None = None
    """Of the outer optimizer."""

    @property
    def outer_learning_rate(self) -> float | None:
        if self.effective is None or self.momentum is None:
            return None
        return round(self.effective * (1 - self.momentum), 6)


@dataclass(frozen=True, slots=True)
class Variant:
    """One method."""

    label: str
    kind: Literal["alone", "data_parallel", "decoupled"] = "decoupled"
    optimizer: Literal["AdamW", "Muon"] = "AdamW"
    sync: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """What it changes in ``spec.sync``."""
    inner: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """What it changes in ``spec.training.optimizer``."""
    warmup: float | None = None
    """Warm-up as a share of the steps; None: the manifest's 20 steps."""
    primal_average: float | None = None
    """Share of a step in the mean that AdamW makes inside (`primal_averaging`)."""
    change: Change | None = None
    """Of H during the job."""
    world: str = "calm"
    learners: int = LEARNERS
    mean_of: str | None = None
    """The variant whose runs these are, with the mean of the last ``MEAN_SHARE`` as their model. None: it has runs."""
    rates_of: str | None = None
    """The variant whose rates it takes; None: it has a search of its own. Beside Muon, AdamW's rate is
    data-parallel's."""
    start: Rates = Rates(5.7e-3, effective=1.0, momentum=0.0)
    """Where its search begins, at the smallest budget."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the rates that are chosen for it."""
        if self.kind != "decoupled":
            return ("adamw",) if self.optimizer == "AdamW" else ("muon", "adamw")
        return ("adamw" if self.optimizer == "AdamW" else "muon", "effective", "momentum")


_ALONE = Rates(5.7e-3)
_MUON = Rates(11.3e-3, 22.6e-3, 1.0, 0.0)


def _muon(label: str, rates_of: str | None = None, **sync: Any) -> Variant:
    return Variant(f"decoupled, Muon, {label}", optimizer="Muon", sync=sync, rates_of=rates_of, start=_MUON)


_METHODS: Final[Mapping[str, Variant]] = {
    "data_parallel": Variant("data-parallel, AdamW", "data_parallel", start=_ALONE),
    "data_parallel_muon": Variant("data-parallel, Muon", "data_parallel", "Muon", start=Rates(8e-3, 32e-3)),
    "decoupled": Variant("decoupled, AdamW, H = 24"),
    "muon": _muon("H = 24"),
    "muon_h12": _muon("H = 12", "muon_h6", interval=12),
    "muon_h6": _muon("H = 6", interval=6),
    "muon_h3": _muon("H = 3", "muon_h6", interval=3),
    "muon_h6_thin": _muon("H = 6, Int4 up, Int8 down", "muon_h6", interval=6, compression="Int4", downlink="Int8"),
    "by_default": Variant("decoupled, AdamW, H = 24, rates as by default"),
    "decoupled_h12": Variant("decoupled, AdamW, H = 12", sync={"interval": 12}),
    "alone": Variant("one learner alone, its own steps only", "alone", start=_ALONE),
    "lock_step": Variant(
        "lock-step (K = M, nobody fails)", sync={"quorum": LEARNERS, "maxStalenessSteps": 26}, rates_of="decoupled"
    ),
    "faults": Variant("one at half speed, a kill a minute", world="faults", rates_of="decoupled"),
    "three": Variant("three learners, nobody fails", learners=3, rates_of="decoupled"),
    "cuts": Variant("every minute a link cut for 18 s", world="cuts", rates_of="decoupled"),
    "mean": Variant("Mean instead of RDA", sync={"merge": "Mean"}, rates_of="decoupled"),
    "faults_no_token_weights": Variant(
        "half speed and kills, no token weights", sync={"tokenWeights": False}, world="faults", rates_of="decoupled"
    ),
    "int4": Variant("Int4 up with error feedback", sync={"compression": "Int4"}, rates_of="decoupled"),
    "int8_down": Variant("Int8 down", sync={"downlink": "Int8"}, rates_of="decoupled"),
    "uneven": Variant("uneven speeds, K = 1", world="uneven", rates_of="decoupled"),
    "uneven_no_grace": Variant(
        "uneven speeds, K = 1, no grace", sync={"grace": {"safety": 0.0}}, world="uneven", rates_of="decoupled"
    ),
    "uneven_all": Variant("uneven speeds, K = M", sync={"quorum": LEARNERS}, world="uneven", rates_of="decoupled"),
    "uneven_lock_step": Variant(
        "uneven speeds, K = M in lock-step",
        sync={"quorum": LEARNERS, "maxStalenessSteps": 26},
        world="uneven",
        rates_of="decoupled",
    ),
}


CHANGES: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "warm": ("warm-up of 10 %", {"warmup": 0.1}),
    "to_zero": ("cosine to 0", {"inner": {"finalFraction": 0.0}}),
    "to_third": ("cosine to 0.3", {"inner": {"finalFraction": 0.3}}),
    "less_decay": ("weight decay 0.025", {"inner": {"weightDecay": 0.025, "muon": {"weightDecay": 0.025}}}),
    "momentum_9": ("Muon's momentum 0.9", {"inner": {"muon": {"momentum": 0.9}}}),
    "mean": ("Mean", {"sync": {"merge": "Mean"}}),
    "whole": ("P = 1", {"sync": {"fragments": 1}}),
    "p4": ("P = 4", {"sync": {"fragments": 4}}),
    "p8": ("P = 8", {"sync": {"fragments": 8}}),
    "free": ("schedule-free", {"primal_average": 0.0, "inner": {"decay": "Constant"}}),
    "primal_24": ("mean of 24 steps inside", {"primal_average": 1 / 24}),
    "primal_96": ("mean of 96 steps inside", {"primal_average": 1 / 96}),
    "grows": ("H = 6, then 24", {"change": Change(1 / 3, 6, 24), "sync": {"interval": 24}}),
    "shrinks": ("H = 24, then 6", {"change": Change(2 / 3, 24, 6), "sync": {"interval": 24}}),
    "one": ("one learner", {"learners": 1}),
    "two": ("two learners", {"learners": 2}),
    "beta_95": ("beta2 0.95", {"inner": {"beta2": 0.95}}),
}
"""What experiments change in a method: a label, and fields of its `Variant`."""
VARIANTS: Final[Mapping[str, Variant]] = {
    **{
        f"{name}_{change}": replace(_METHODS[name], label=f"{_METHODS[name].label}, {label}", rates_of=name, **what)
        for name in ("data_parallel", "data_parallel_muon", "decoupled", "muon", "muon_h6")
        for change, (label, what) in CHANGES.items()
    },
    **_METHODS,
    **{
        f"{name}_averaged": replace(_METHODS[name], label=label, rates_of=name, mean_of=name)
        for name, label in (
            ("data_parallel", "data-parallel, AdamW, last 6 % averaged"),
            ("data_parallel_muon", "data-parallel, Muon, last 6 % averaged"),
            ("decoupled", "decoupled, AdamW, H = 24, last 6 % averaged"),
            ("by_default", "decoupled, AdamW, H = 24, as by default"),
            ("muon_h6", "decoupled, Muon, H = 6, last 6 % averaged"),
        )
    },
}


AGAINST: Final[Mapping[str, tuple[str, ...]]] = {
    "data_parallel_muon": ("data_parallel",),
    "decoupled": ("data_parallel", "data_parallel_muon", "lock_step"),
    "by_default": ("data_parallel", "decoupled"),
    "decoupled_averaged": ("data_parallel_averaged",),
    "by_default_averaged": ("data_parallel_averaged",),
    "muon_h6_averaged": ("data_parallel_muon_averaged",),
    "muon": ("data_parallel_muon", "data_parallel"),
    "muon_h12": ("data_parallel_muon", "muon"),
    "muon_h6": ("data_parallel_muon", "muon"),
    "muon_h3": ("data_parallel_muon", "muon_h6"),
    "alone": ("decoupled",),
    "lock_step": ("decoupled",),
    "faults": ("decoupled", "three"),
    "three": ("decoupled",),
    "cuts": ("decoupled",),
    "mean": ("decoupled",),
    "faults_no_token_weights": ("faults",),
    "int4": ("decoupled",),
    "int8_down": ("decoupled",),
    "muon_h6_thin": ("data_parallel_muon", "muon_h6"),
}
"""What each is held against, seed by seed."""


OFFERED: Final = ("decoupled", "by_default", "muon", "muon_h12", "muon_h6", "muon_h3", "muon_h6_thin")
"""What a recommendation may be; of the first two, the first that there is."""


CHOSEN: Final[Mapping[tuple[str, int, str], Rates]] = {
    ("B", 400, "by_default"): Rates(2e-3, effective=1.0, momentum=0.0),
    ("A", 1600, "decoupled"): Rates(5.7e-3, effective=1.75, momentum=0.6),
    ("A", 6400, "decoupled"): Rates(5.7e-3, effective=1.0, momentum=0.0),
    ("B", 1600, "by_default"): Rates(2e-3, effective=1.75, momentum=0.6),
    ("B", 6400, "by_default"): Rates(2e-3, effective=7.0, momentum=0.9),
    ("B", 1600, "decoupled"): Rates(4e-3, effective=1.75, momentum=0.6),
    ("batch 2", 3200, "decoupled"): Rates(2e-3, effective=1.75, momentum=0.6),
    ("B", 1600, "muon"): Rates(11.3e-3, 11.3e-3, 1.0, 0.0),
    ("B", 6400, "muon"): Rates(11.3e-3, 22.6e-3, 1.0, 0.3),
    ("B", 1600, "muon_h6"): Rates(11.3e-3, 11.3e-3, 1.0, 0.0),
    ("B", 1600, "muon_h6_thin"): Rates(11.3e-3, 22.6e-3, 1.0, 0.0),
}
"""Workload, steps, variant: rates that an experiment has chosen, and those that a manifest without rates gets."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Some variants at one budget."""

    workload: str
    steps: int
    """Inner steps of each of four learners that share the budget evenly."""
    variants: tuple[str, ...]
    seeds: int
    """0 to this, less one; 0: only the search of rates."""
    searched: tuple[str, ...] | None = None
    """The variants whose rates are searched at this budget; the others take those of the next smaller one. None: all
    that have a search."""


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
    Stage("B", 6400, ("by_default", "by_default_averaged"), 3, searched=()),
    Stage("B", 1600, ("by_default", "by_default_averaged", "decoupled_averaged", "muon_h6_averaged"), 3, searched=()),
    Stage("B", 400, ("by_default",), 3, searched=()),
    Stage("B", 1600, (*MAIN, "muon_h6_thin"), 3, searched=("data_parallel",)),
    Stage("A", 1600, (*MAIN, "muon_h6_thin"), 3, searched=()),
    Stage("B", 1600, ("data_parallel_averaged", "data_parallel_muon_averaged"), 3, searched=()),
    Stage("B", 6400, ("data_parallel", "data_parallel_averaged"), 3, searched=()),
    Stage(
        "batch 2", 3200, ("data_parallel", "data_parallel_averaged", "decoupled", "decoupled_averaged"), 3, searched=()
    ),
    Stage("B", 6400, ("data_parallel_muon", "data_parallel_muon_averaged"), 3, searched=()),
    Stage("B", 6400, ("muon_h6", "muon_h6_averaged"), 3, searched=()),
    Stage("B", 6400, ("muon",), 2, searched=()),
    Stage("A", 6400, MAIN, 2, searched=()),
    Stage("nano", 400, MAIN, 1),
)
"""Most important first: an interruption leaves the most valuable tables complete."""
QUICK: Final = (Stage("batch 1", 32, ("data_parallel", "decoupled", "faults"), 2, searched=()),)
"""A smoke test."""
