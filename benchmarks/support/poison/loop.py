"""The closed loop of `benchmarks/poison.py`: learners, the product's merge, and what wrong learners send."""

import math
from collections import Counter
from dataclasses import dataclass, field
from statistics import fmean, median

import torch
from torch import Tensor

from diloco.core.fragments import Fragment
from diloco.core.merge import member_sizes
from diloco.core.merge.codecs import codec_named
from diloco.core.merge.fragment_merge import Contribution, MergeError, MergeTarget, merge_fragment
from diloco.core.merge.member_sizes import NO_PAST
from diloco.core.merge.merge_weights import normalized, token_weight
from diloco.core.merge.rules import RULES, MergeRule
from diloco.spec.outer_choice import AVERAGE
from support.poison.characters import EVALUATED, FRAGMENTS, AdamW, Text, initial, layout, losses, part_of, put

INTERVAL, OVERLAP, BATCH = 24, 2, 32
TEXT = Text.open()


@dataclass(frozen=True)
class Case:
    """What happens in a run."""

    name: str
    members: int = 4
    wrong: int = 0
    """The last learners are wrong: they train as the others do, and send something else."""
    kind: str = ""
    """sign, scale, noise, drift, tiny or against."""
    factor: float = 1.0
    absent: int = 0
    """Learners that are not there."""
    paces: tuple[int, ...] = ()
    """By learner: it makes a step every so many."""
    batches: tuple[int, ...] = ()
    """By learner: sequences a step."""
    restarts_every: int = 0
    """One learner after the other loses its optimizer's state every so many steps."""


@dataclass
class Outcome:
    """What a run has measured."""

    loss: float = math.nan
    """On held-out text at the end, nats a character."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Members left out of merges: honest, wrong."""
    clipped: Counter[str] = field(default_factory=Counter)
    """Members of which a tensor was clipped."""
    members: Counter[str] = field(default_factory=Counter)
    cosines: dict[str, list[float]] = field(default_factory=lambda: {"honest": [], "wrong": []})
    """With the others, of every merge."""
    growth: list[float] = field(default_factory=list)
    """Exponents of the steps with which the norms of a learner of more steps and one of fewer differ."""


def run(case: Case, seed: int, steps: int, *, clipped: bool, rule: MergeRule = RULES[0]) -> Outcome:
    """One run; ``clipped``: whether members are clipped, or only left out."""
    before = member_sizes.CLIP_RATIO
    member_sizes.CLIP_RATIO = before if clipped else math.inf
    try:
        return _Loop(case, seed, steps, rule).run()
    finally:
        member_sizes.CLIP_RATIO = before


class _Loop:
    def __init__(self, case: Case, seed: int, steps: int, rule: MergeRule) -> None:
        self.case, self.steps, self.rule = case, steps, rule
        self.members = case.members - case.absent
        self.wrong = case.wrong if not case.absent else 0
        self.paces = case.paces or (1,) * self.members
        self.batches = case.batches or (BATCH,) * self.members
        self.fragments = layout().fragments
        begun = initial(seed)
        self.globe = {name: one.unsqueeze(0).clone() for name, one in begun.items()}
        self.networks = {
            name: one.unsqueeze(0).repeat(self.members, *[1] * one.dim()).requires_grad_()
            for name, one in begun.items()
        }
        self.optimizer = AdamW(self.networks, self.members)
        self.text = TEXT
        self.generators = [torch.Generator().manual_seed(1000 * seed + one) for one in range(self.members)]
        self.noise = torch.Generator().manual_seed(seed)
        self.drifts: dict[int, Tensor] = {}
        self.usual = [NO_PAST] * len(self.fragments)
        self.momentum = [torch.zeros(one.numel) for one in self.fragments]
        current = [part_of(self.globe, one, 0) for one in self.fragments]
        self.anchors = [[values] * self.members for values in current]
        self.since = [[0] * self.members for _ in self.fragments]
        """By fragment and learner: its steps when it received the fragment."""
        self.made = [0] * self.members
        self.outcome = Outcome()

    def run(self) -> Outcome:
        sent: dict[int, tuple[int, list[Tensor], list[int]]] = {}
        for step in range(1, self.steps + 1):
            self._train(step)
            number, between = divmod((step - 1) % INTERVAL, INTERVAL // FRAGMENTS)
            if between == 0:
                fragment = self.fragments[number]
                moved = [self.anchors[number][one] - part_of(self.networks, fragment, one) for one in self._all]
                took = [self.made[one] - self.since[number][one] for one in self._all]
                self._measure_growth(moved, took)
                sent[step + OVERLAP] = number, self._told(moved, fragment), took
            if step in sent:
                number, gradients, took = sent.pop(step)
                self._merge(number, gradients, took)
                for one in self._all:
                    self.since[number][one] = self.made[one]
        generator = torch.Generator().manual_seed(99)
        rows = self.text.batch(generator, EVALUATED, held=True).unsqueeze(0)
        with torch.no_grad():
            self.outcome.loss = losses(self.globe, rows).mean().item()
        return self.outcome

    @property
    def _all(self) -> range:
        return range(self.members)

    def _train(self, step: int) -> None:
        every = self.case.restarts_every
        if every and step % every == 0:
            self.optimizer.restart(step // every % self.members)
        acting = [one for one in self._all if step % self.paces[one] == 0]
        rows = torch.stack([self.text.batch(one, max(self.batches)) for one in self.generators])
        shares = torch.zeros(rows.shape[:2])
        for one, batch in enumerate(self.batches):
            shares[one, :batch] = 1 / batch
        for parameter in self.networks.values():
            parameter.grad = None
        (losses(self.networks, rows) * shares).sum().backward()  # type: ignore[no-untyped-call] # torch's
        self.optimizer.step(acting, 0.1 + 0.45 * (1 + math.cos(math.pi * step / self.steps)))
        for one in acting:
            self.made[one] += 1

    def _measure_growth(self, moved: list[Tensor], took: list[int]) -> None:
        most, least = took.index(max(took)), took.index(min(took))
        if took[least] > 0 and took[most] > 2 * took[least] and max(took) > INTERVAL // 2:
            ratio = (moved[most].norm() / moved[least].norm()).item()
            self.outcome.growth.append(math.log(ratio) / math.log(took[most] / took[least]))

    def _told(self, moved: list[Tensor], fragment: Fragment) -> list[Tensor]:
        """What the learners send; wrong ones that send ``against`` know what the others do."""
        case, honest = self.case, moved[: self.members - self.wrong]
        for one in range(len(honest), self.members):
            values, length = moved[one], moved[one].norm()
            if case.kind == "sign":
                moved[one] = -values
            elif case.kind in ("scale", "tiny"):
                moved[one] = case.factor * values
            elif case.kind in ("noise", "drift"):
                drawn = torch.randn(values.shape, generator=self.noise)
                if case.kind == "drift":
                    drawn = self.drifts.setdefault(fragment.index, drawn)
                moved[one] = drawn * (case.factor * length / drawn.norm())
            elif case.kind == "against":
                total = torch.stack(honest).sum(0)
                for slot in fragment.slots:
                    within = slice(slot.offset, slot.offset + slot.tensor.numel)
                    usual = median(other[within].norm().item() for other in honest)
                    values[within] = -total[within] / (total[within].norm() + 1e-30) * case.factor * usual
        return moved

    def _merge(self, number: int, gradients: list[Tensor], took: list[int]) -> None:
        fragment, codec = self.fragments[number], codec_named("BF16")
        tokens = {one: took[one] * self.batches[one] for one in self._all if took[one] > 0}
        weights = normalized({f"{one}": token_weight(count, took[one]) for one, count in tokens.items()})
        contributions = [
            Contribution(f"{one}", weights[f"{one}"], codec.encode(gradients[one]), steps=took[one]) for one in tokens
        ]
        current = part_of(self.globe, fragment, 0)
        result = torch.empty_like(current)
        try:
            found = merge_fragment(
                fragment,
                contributions,
                codec=codec,
                rule=self.rule,
                parameters=current,
                momentum=self.momentum[number],
                outer=AVERAGE,
                into=MergeTarget(result, self.momentum[number]),
                usual=self.usual[number],
            )
            verdict, cosines = found.verdict, found.cosines
        except MergeError as error:
            verdict, cosines, result = error.verdict, {}, current
        self.usual[number] = verdict.usual
        for one in tokens:
            who = "honest" if one < self.members - self.wrong else "wrong"
            self.outcome.members[who] += 1
            self.outcome.left_out[who] += f"{one}" in verdict.left_out
            self.outcome.clipped[who] += f"{one}" in verdict.clips
            if f"{one}" in cosines:
                self.outcome.cosines[who].append(cosines[f"{one}"])
        put(self.globe, fragment, result, 0)
        for one in self._all:
            put(self.networks, fragment, result, one)
            self.anchors[number][one] = result


def shares(outcomes: list[Outcome]) -> dict[str, float]:
    """Of several runs: shares of honest and wrong members left out and clipped, and their mean cosines."""
    found: dict[str, float] = {}
    for who in ("honest", "wrong"):
        count = sum(one.members[who] for one in outcomes)
        cosines = [cosine for one in outcomes for cosine in one.cosines[who]]
        if count:
            found[f"{who}_left_out"] = sum(one.left_out[who] for one in outcomes) / count
            found[f"{who}_clipped"] = sum(one.clipped[who] for one in outcomes) / count
        if cosines:
            found[f"{who}_cosine"] = fmean(cosines)
    return found
