"""Notices what training changes besides trained parameters.

Nothing else is synchronized: learners would evaluate different models, and the exported one would be another again. It
compares what the same parameters give for the same examples, whatever it is that changed. The parameters' values depend
on their shapes alone, so neither a copy of a model has to be kept nor does it matter which model the learner received
meanwhile. Each evaluation checks, because what an evaluation says is what a change makes wrong.
"""

import logging

import torch
from torch import Tensor, nn

from diloco.learner.data import DataError
from diloco.learner.data.task import JobTask
from diloco.learner.training.gradients import in_training
from diloco.learner.training.share import WHOLE, Share
from diloco.model import ModelError
from diloco.model.constants import SavedBuffers, changed_in_training, digests
from diloco.model.entrypoint import one_line
from diloco.model.fragments import trained_parameters
from diloco.model.probe import arithmetic, evaluating
from diloco.model.randomness import seeded_by
from diloco.model.values import drawn_values, swapped
from diloco.spec.training import TrainingSpec

_log = logging.getLogger(__name__)
_EQUAL_PROBES = 3
"""So many in a row must agree before a difference from the first counts as a change."""


class StateWatch:
    """Of one module, on its device. ``batch``: a few examples, on that device, the same in all processes."""

    def __init__(
        self, module: nn.Module, task: JobTask, batch: dict[str, Tensor], training: TrainingSpec, share: Share = WHOLE
    ) -> None:
        """Begin to watch, and look at what one forward pass in training changes.

        Raises:
            ModelError: it changes something; or it is not possible.
            DataError: the task's loss cannot be computed.
        """
        self._module, self._task, self._batch, self._share = module, task, batch, share
        self._device = device = next(module.parameters()).device
        try:
            self._first = self._probe()
            # Caches have grown now.
            self._saved, self._digests = SavedBuffers(module), digests(module)
            self._watches = self._is_steady(self._first)
            with seeded_by("probe", device), torch.no_grad(), in_training(training, device, share):
                task.loss(module, batch)
        except (DataError, ModelError, torch.OutOfMemoryError):
            raise
        except (Exception, SystemExit) as error:  # a user's model may raise anything: show it to the user
            raise ModelError(f"model: its forward pass raised {one_line(error)}") from error
        self.check()

    def check(self) -> None:
        """Check that nothing has changed since the watch began.

        Raises:
            ModelError: something has; the text names it where it can be found.
        """
        changed = self._saved.changed()
        if not changed and self._watches and self._differs(now := self._probe(), self._first):
            self._watches = self._is_steady(now)
            if self._watches:
                after = digests(self._module)
                changed = next((name for name in after if after[name] != self._digests.get(name)), "")
                changed = changed or "state that is neither a parameter nor a buffer"
        if changed:
            raise changed_in_training(changed)

    def _is_steady(self, first: Tensor) -> bool:
        """Whether the same state gives the same result."""
        if not any(self._differs(self._probe(), first) for _ in range(_EQUAL_PROBES - 1)):
            return True
        _log.warning(
            "the model gives different results for the same parameters and examples in evaluation mode; whether "
            "training changes more than trained parameters is not checked"
        )
        return False

    def _differs(self, one: Tensor, other: Tensor) -> bool:
        return self._share.anywhere(not torch.equal(one, other))

    def _probe(self) -> Tensor:
        """The sum and the count of the losses, bit by bit, as integers of 8 bytes."""
        values = drawn_values(trained_parameters(self._module), self._device)
        with (
            torch.no_grad(),
            evaluating(self._module),
            swapped(self._module, values),
            arithmetic(self._module, self._device),
            seeded_by("probe", self._device),
        ):
            pair = self._task.loss(self._module, self._batch)
        return torch.stack([torch.as_tensor(one).double().cpu() for one in pair]).view(torch.int64)
