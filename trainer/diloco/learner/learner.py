"""Builds a learner from its parts (trainer, exchange, checkpoints), starts it and shuts it down."""

import logging
import random
import secrets
import time

from diloco.core.engine.rounds.schedule import Schedule
from diloco.core.merge.codecs import uplink_codec
from diloco.core.merge.downlink import downlink_codec
from diloco.core.process_name import process_name
from diloco.learner.activity import Activity, Kind
from diloco.learner.activity_file import ACTIVITY_FILE, Told, write_activity
from diloco.learner.checkpoint import CHECKPOINTS_FOLDER, CheckpointIdentity, CheckpointStore, LearnerCheckpoint
from diloco.learner.checkpoint_writer import CheckpointWriter
from diloco.learner.exchange.exchange import Exchange, ExchangeOptions
from diloco.learner.exchange.holdings import Holdings
from diloco.learner.exchange.link import Shared
from diloco.learner.exchange.orders import Ending, EndKind, Orders, Wakeup
from diloco.learner.exchange.outbox import Outbox
from diloco.learner.exchange.pulls import ReceiveOptions
from diloco.learner.exchange.pushes import PushEncoding
from diloco.learner.exchange.requests import Requests
from diloco.learner.exchange.residuals import Residuals
from diloco.learner.exchange.transfers import TransferCounts
from diloco.learner.inner_loop import InnerLoop, LoopSettings, LoopWiring
from diloco.learner.job_training import Training, training_of
from diloco.learner.metrics import LearnerFigures, figure_pages
from diloco.learner.options import LearnerOptions
from diloco.learner.resume import Resume
from diloco.learner.training.devices.device import computing, device_name, peak_flops
from diloco.learner.training.devices.torch_threads import start_worker
from diloco.learner.training.steps import TrainingDivergedError
from diloco.learner.unit.starting import Unit
from diloco.runtime.backoff import Backoff, Retries
from diloco.runtime.files import make_writable_directory
from diloco.runtime.http import Route
from diloco.wire.client.client import ClientOptions
from diloco.wire.messages import Join

_log = logging.getLogger(__name__)


_ROOM = 3.0
"""At the end, pushes get so many times the time that they take at the link's rate (ours)."""
_ASK_FIRST_SECONDS, _ASK_MOST_SECONDS = 1.0, 60.0
"""Pauses, growing, between questions of a process that stays (ours): its pod is often removed within seconds. A raised
budget waits no longer than the last, and many learners of a cluster that is out of reach burden nobody."""


class Learner:
    """The learner of one process. Built, run once, closed."""

    def __init__(
        self,
        options: LearnerOptions,
        orders: Orders,
        wakeup: Wakeup,
        own: Training | None = None,
        unit: Unit | None = None,
    ) -> None:
        """Build the model, open the data, find the checkpoint. Nothing is connected and no thread runs yet.

        ``own``: what trains, if a loop of the user's own makes the steps. ``unit``: its processes, if they are several.

        Raises:
            ModelError, LayoutError, DataError, DeviceError, OptimizerError, BatchError: this machine lacks what the job
                asks for.
            DataStoppedError: ``orders`` ask to stop before documents are tokenized.
            UnusableFileError: the directory cannot be used.
            TlsFileError: a certificate cannot be read.
        """
        self._options = options
        self._orders = orders
        self._wakeup = wakeup
        self._activity = Activity(time.monotonic)
        spec = options.job.spec
        make_writable_directory(options.directory, even_if_full=True)
        self._training = training = own or training_of(options, orders, wakeup, unit)
        self._trainer, self._step = training.trainer, training.step
        layout = self._trainer.layout
        device = self._trainer.device
        computed_in = "" if spec.loop is not None else computing(spec.training, device)
        # Once nothing is wrong with the job: a mistake is one line.
        _log.info("training on %s%s", device, f" in {computed_in}" if computed_in else "")
        identity = CheckpointIdentity(
            options.job.metadata.name, options.learner, layout.digest, self._trainer.optimizer_identity
        )
        store = CheckpointStore(options.directory / CHECKPOINTS_FOLDER, identity, self._trainer.others)
        self._writer = CheckpointWriter(store.save)
        self._feedback = Residuals() if spec.sync.keeps_residuals else None
        self._resume = Resume(self._trainer, self._feedback, store.load())

        fragments = len(layout.fragments)
        schedule = Schedule(fragments, spec.sync.interval, spec.sync.least_overlap)
        in_flight = schedule.in_flight(schedule.overlap)
        self._counts = TransferCounts()
        self._shared = Shared(
            orders=orders,
            requests=Requests(wakeup, fragments, in_flight),
            holdings=Holdings(wakeup, fragments),
            outbox=Outbox(spec.sync.alive_seconds, self._counts.received.read),
            feedback=self._feedback,
            hand=self._trainer.hand,
        )
        # Jitter need not be secret.
        uniform = self._uniform = random.Random().random  # noqa: S311
        self.loop = InnerLoop(
            self._trainer,
            LoopWiring(
                self._shared,
                wakeup,
                lambda: self._link.current(),  # noqa: PLW0108  # the link is made after the loop
                lambda: self._link.welcome_position,
                self._offer_checkpoint,
                lambda: self._resume.take_up(self._link.training),
            ),
            LoopSettings(
                options.staleness_bound_steps,
                spec.training.checkpoint_every_steps,
                options.speed,
                on_cpu=self._trainer.device.type == "cpu",
            ),
            self._activity,
        )
        who = Join(
            options.job.metadata.name,
            options.learner,
            process_name(secrets.token_hex(8), options.pod if unit is None else unit.pod),
            layout.digest,
            sequences=self._trainer.sequences,
            data_digest=self._trainer.data_digest,
            computes=f"{computed_in} on {device_name(device)}" if computed_in else "",
        )
        self._codec = uplink_codec(spec.sync)
        numels = tuple(fragment.numel for fragment in layout.fragments)
        exchange = ExchangeOptions(
            who,
            ClientOptions(options.syncer_address, options.tls),
            PushEncoding(self._codec, self._feedback),
            ReceiveOptions(numels, self._trainer.buffer, downlink_codec(spec.sync)),
            self._resume.position,
            self.loop.step_seconds,
            uniform,
        )
        self._exchange = Exchange(exchange, self._shared, self._counts)
        self._link = self._exchange.link
        self._staying = False
        self.checkpoint_written = True
        """Whether the last checkpoint, if one was due, is on disk."""

    def pages(self) -> dict[str, Route]:
        """HTTP pages, by path."""
        return figure_pages(self._figures())

    def run(self) -> Ending:
        """Join, train until the end, and shut down as that end requires.

        Raises:
            TrainingDivergedError, DataError: from the trainer.
        """
        assert self._step is not None, "the steps are not the user's"
        self.start()
        try:
            ending = self.loop.run(self._step)
        except TrainingDivergedError:
            self._forget_diverged()
            raise
        self.finish(ending)
        return ending

    def start(self) -> None:
        """Start every thread, and join; then the loop can begin."""
        self._writing = start_worker("checkpoint", self._writer.run, self._orders.fail)
        self._exchange.start()

    def finish(self, ending: Ending) -> None:
        """Shut down as the loop's end requires."""
        if ending.kind is EndKind.STOPPED:
            self._shut_down(ending)
        self._writer.close()  # the other processes have to be there for a checkpoint that is being written
        self._training.end()
        if ending.kind is not EndKind.REFUSED:
            told = Told(self._options.learner, ending, self._link.sessions, self._trainer.steps, self._trainer.tokens)
            write_activity(self._options.directory / ACTIVITY_FILE, told, self._activity.spent(), self._counts)

    def stay(self) -> None:
        """Wait until this process is asked to stop, or the job goes on: what has ended its work trains no more.

        Only the HTTP pages stay available; everything else ends now.
        """
        self._staying = True
        self._end_work()
        _log.info("the job is over; waiting for SIGTERM")
        pauses = Retries(Backoff(_ASK_FIRST_SECONDS, _ASK_MOST_SECONDS, self._uniform))
        while True:
            notices = self._wakeup.notices
            if not self._orders.stopping:
                self._wakeup.wait(notices, pauses.next_seconds())
            if self._orders.stopping:
                return
            if self._exchange.goes_on():
                _log.info("the job goes on; the next process trains")
                return

    def close(self) -> None:
        """Stop every thread and close every connection."""
        self._end_work()

    def _end_work(self) -> None:
        """May be called more than once."""
        self._exchange.close()
        self._writer.close()

    def _forget_diverged(self) -> None:
        """Save a checkpoint without an optimizer state: the next process loads the model, and starts over with it."""
        self._trainer.start_over()
        if self._feedback is not None:
            self._feedback.forget()
        self._writer.finish(self._snapshot, self._writer.longest_seconds())

    def _offer_checkpoint(self) -> None:
        self._writer.offer(self._snapshot)

    def _snapshot(self) -> LearnerCheckpoint:
        residuals = {} if self._feedback is None else self._feedback.snapshot()
        return LearnerCheckpoint(self._trainer.state(), residuals, self._link.training)

    def _shut_down(self, ending: Ending) -> None:
        """Push what was requested, leave, and save a checkpoint: within a time limit, whatever the syncer does."""
        self._activity.switch_to(Kind.LOADING)
        began = time.monotonic()
        _log.info("stopping after step %d (%s)", self._trainer.steps, ending.reason)
        self.loop.answer_waiting()
        # The checkpoint is written while the pushes go out: the process was asked to stop and should end soon.
        if trained := self._trainer.steps > 0:
            begun = self._writer.finish(self._snapshot, self._options.hand_in_seconds)
        longest = self._writer.longest_seconds()
        self._push_due(ending, began + max(self._options.hand_in_seconds, min(longest, self._due_seconds())))
        if trained:
            if not begun:
                self._writer.finish(self._snapshot, longest)
            self.checkpoint_written = self._writer.close() and self._writer.written_steps == self._trainer.steps
            if self.checkpoint_written:
                _log.info("wrote a checkpoint of step %d", self._trainer.steps)
            else:
                _log.error(
                    "no last checkpoint: %s; a restart continues from the previous one",
                    self._writer.problem,
                )

    def _due_seconds(self) -> float:
        """Longest time for the pushes that are due, at the link's rate; 0 before one was measured."""
        rate = self._exchange.push_bytes_per_second
        numels = self._trainer.layout.numels
        due = sum(self._codec.payload_bytes(numels[fragment]) for fragment in self._exchange.pending())
        return 0.0 if rate is None else _ROOM * due / rate

    def _push_due(self, ending: Ending, until: float) -> None:
        membership = self._link.current()
        if membership is None:
            _log.info("leaving without a session: cannot hand in any work")
            return
        whole = self._exchange.hand_in(max(0.0, until - time.monotonic()))
        told = self._exchange.leave(membership, ending.reason, max(1.0, until - time.monotonic()))
        left = "leaving" if told else "leaving, but could not tell the syncer"
        _log.info(
            "%s, %s", left, "handed in everything that was requested" if whole else "could not hand in everything"
        )

    def _figures(self) -> LearnerFigures:
        training = self._training
        return LearnerFigures(
            spent=self._activity.spent,
            news=lambda: self.loop.news,
            staleness_steps=lambda: self._trainer.staleness,
            sessions=lambda: self._link.sessions,
            joined=lambda: self._link.current() is not None,
            over=lambda: self._staying,
            counts=self._counts,
            batch_size=self._trainer.batch_size,
            tokens_per_step=self._trainer.batch_size * self._options.job.spec.training.sequence_length,
            flops_of_token=training.flops_of_token,
            processes=training.processes,
            peak_flops=peak_flops(self._trainer.device, self._options.job.spec.training.precision, training.processes),
        )
