"""Takes up a learner's own checkpoint once the syncer has said which training this is.

A volume that outlives its pod may outlive the training too: a job of the same name may have begun anew, or its syncer
may have lost its volume. The optimizer's state of another training, and the place in its data, are of no use then.
"""

import logging

from diloco.learner.checkpoint import LearnerCheckpoint
from diloco.learner.data import DataError
from diloco.learner.exchange.link import Position
from diloco.learner.exchange.residuals import Residuals
from diloco.learner.options import is_other_training
from diloco.learner.training.fragment_trainer import FragmentTrainer
from diloco.model.entrypoint import one_line
from diloco.runtime.output import escaped

_log = logging.getLogger(__name__)
_LONGEST_ID = 40


class Resume:
    """What the checkpoint of an earlier process has, until it is used or ignored.

    The inner loop's thread calls ``take_up``; any thread may call ``position``.
    """

    def __init__(
        self, trainer: FragmentTrainer, feedback: Residuals | None, checkpoint: LearnerCheckpoint | None
    ) -> None:
        """``checkpoint``: None if there is none. ``feedback``: None if the job uses no error feedback."""
        self._trainer = trainer
        self._feedback = feedback
        self._waiting = checkpoint

    def position(self) -> Position:
        """How far the learner is: the checkpoint's counts, until they are taken up or ignored."""
        waiting = self._waiting
        if waiting is None:
            return Position(self._trainer.steps, self._trainer.data_position)
        return Position(waiting.state.steps, waiting.state.data_position, waiting.training)

    def take_up(self, training: str) -> None:
        """Go on from the checkpoint if it is of ``training``, the syncer's; empty: the syncer has not said."""
        checkpoint = self._waiting
        if checkpoint is None:
            return
        step = checkpoint.state.steps
        if is_other_training(checkpoint.training, training):
            _log.warning(
                "ignoring its own checkpoint of step %d: it is of training %s, this is training %s; the inner optimizer"
                " starts anew",
                step,
                *(escaped(one[:_LONGEST_ID]) for one in (checkpoint.training, training)),
            )
            self._trainer.start_over()  # other processes of this learner have restored their parts
        else:
            self._load(checkpoint)
        self._waiting = None

    def _load(self, checkpoint: LearnerCheckpoint) -> None:
        step = checkpoint.state.steps
        try:
            self._trainer.load_state(checkpoint.state)
        except DataError:  # of a loop of the user's own
            raise
        except (KeyError, ValueError) as error:
            _log.warning(
                "ignoring its own checkpoint of step %d: it does not fit the inner optimizer (%s), which starts anew",
                step,
                one_line(error),
            )
            self._trainer.start_over()
            return
        if self._feedback is not None:
            self._feedback.restore(checkpoint.residuals)
        _log.info("continues from its own checkpoint of step %d", step)
