"""The loss of the mean of the last models of a run, beside that of the last one.

Of decoupled training the mean is of the last versions of each fragment, as the syncer made them. Of data-parallel
training it is of the model after every few steps.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from diloco.core.engine.actions import Action
from diloco.core.engine.engine import Engine
from diloco.core.engine.events import Event, Merged
from diloco.simulate.training.work import GlobalModel

SHARES: Final = (0.06, 0.12)
"""Of the run's steps: the last ones, over which models are averaged."""
EVERY_STEPS: Final = 8
"""Data-parallel training has a model to average so often."""


class LastVersions:
    """Keeps the last versions of each fragment; an observer of a simulation."""

    def __init__(self, model: GlobalModel, merges: int) -> None:
        """``merges``: how many versions of a fragment there will be, about."""
        self._model = model
        self._counts = {share: max(1, round(share * merges)) for share in SHARES}
        self._kept: dict[int, deque[Tensor]] = defaultdict(lambda: deque(maxlen=max(self._counts.values())))

    def begins(self, engine: Engine) -> None:
        """Nothing is kept of the initial model."""

    def passed(self, event: Event, _actions: Sequence[Action], _now: float) -> None:
        """Keep what a merge has made."""
        if isinstance(event, Merged):
            self._kept[event.fragment].append(self._model.values(event.fragment))

    def process(self, learner: str, now: float, change: str) -> None:
        """No process matters."""

    def losses(self, loss_of: Callable[[Mapping[int, Tensor]], float]) -> dict[str, float]:
        """By share of the steps. A share with one version has the loss of the last model, and is left out."""
        return {
            f"{share:g}": loss_of({index: _mean(list(kept)[-count:]) for index, kept in self._kept.items()})
            for share, count in self._counts.items()
            if count > 1
        }


class LastSteps:
    """Keeps the last models of data-parallel training."""

    def __init__(self, steps: int) -> None:
        self._steps, self._done = steps, 0
        self._counts = {share: max(1, round(share * steps / EVERY_STEPS)) for share in SHARES}
        self._kept: deque[Tensor] = deque(maxlen=max(self._counts.values()))

    def watch(self, read: Callable[[], Tensor]) -> None:
        """Keep the model, if its turn has come; see `support.quality.baselines.Watch`."""
        self._done += 1
        if (self._steps - self._done) % EVERY_STEPS == 0:
            self._kept.append(read())

    def losses(self, loss_of: Callable[[Tensor], float]) -> dict[str, float]:
        """By share of the steps, as of `LastVersions`."""
        return {
            f"{share:g}": loss_of(_mean(list(self._kept)[-count:]))
            for share, count in self._counts.items()
            if count > 1
        }


def _mean(models: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(models)).mean(0)
