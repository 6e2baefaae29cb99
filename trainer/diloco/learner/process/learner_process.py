"""Runs the learner as a process: handles signals, serves pages, and ends with an exit code."""

import logging
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from types import FrameType

from diloco.learner.checkpoint import CHECKPOINTS_FOLDER
from diloco.learner.exchange.orders import Ending, EndKind, Orders, Wakeup
from diloco.learner.job_training import Training
from diloco.learner.learner import Learner
from diloco.learner.options import LearnerOptions
from diloco.learner.process.ends import exit_code_of
from diloco.learner.process.stuck import ended_if_stuck
from diloco.learner.session.own_loop import OwnLoop
from diloco.learner.session.peers import first_of
from diloco.learner.training.devices.device import choose_device
from diloco.learner.training.devices.torch_threads import set_torch_threads
from diloco.learner.unit.starting import Unit
from diloco.runtime.http import HttpServer
from diloco.runtime.process.exits import EXIT_OK, EXIT_REFUSED, EXIT_STUCK, EXIT_UNEXPECTED, STOP_SIGNALS
from diloco.runtime.process.loading import Loading

_log = logging.getLogger(__name__)

_SWITCH_SECONDS = 0.0005

_EXITS = {
    EndKind.STOPPED: EXIT_OK,
    EndKind.FINISHED: EXIT_OK,
    EndKind.REFUSED: EXIT_REFUSED,
    EndKind.STUCK: EXIT_STUCK,
}


def run_learner(options: LearnerOptions, unit: Unit | None = None) -> int:
    """Run one learner until it is stopped, the job is over, or the syncer refuses it; returns the exit code.

    ``unit``: its processes, if they are several. The caller sets up logging. If called in the main thread, it handles
    the signals that ask for its end.
    """
    wakeup = Wakeup()
    orders = Orders(wakeup)
    set_torch_threads(options.threads_of_process)
    with _signals(orders), _short_switch_interval(), ended_if_stuck(orders):
        return exit_code_of(
            lambda: _run(options, orders, wakeup, unit), (lambda: None) if unit is None else unit.await_cause
        )


def _run(options: LearnerOptions, orders: Orders, wakeup: Wakeup, unit: Unit | None) -> int:
    with _http(options, unit) as http, ExitStack() as stack:
        began: list[Learner] = []

        def begin(own: Training | None = None) -> Learner:
            made = stack.enter_context(closing(Learner(options, orders, wakeup, own, unit)))
            if http is not None:
                http.serve(made.pages())
            began.append(made)
            return made

        if options.job.spec.loop is None:
            learner = begin()
            ending = learner.run()
        else:
            device = choose_device(options.device_of(0), None if unit is None else 0)
            checkpoints = options.directory / CHECKPOINTS_FOLDER
            peers = None if unit is None else first_of(unit, options.processes_here, checkpoints)
            ending = OwnLoop(options, device, orders, begin, peers).run()
            learner = began[0]
            if unit is not None:
                unit.end(lambda: None)  # they have been told
        _log_ending(ending)
        if options.stay and ending.kind is EndKind.FINISHED:
            learner.stay()
    if ending.kind is EndKind.STOPPED and not learner.checkpoint_written:
        return EXIT_UNEXPECTED
    return _EXITS[ending.kind]


@contextmanager
def _http(options: LearnerOptions, unit: Unit | None) -> Iterator[HttpServer | None]:
    """Serve the HTTP pages before anything that may take long, so that a probe sees that the process is loading."""
    if options.http_address is None:
        yield None
        return
    loading = Loading(waits=lambda: unit is not None and unit.joining)
    loading.switch_to("creating the model and opening the data")
    if unit is not None and unit.nodes is not None and unit.nodes.http is not None:
        unit.nodes.http.serve(loading.pages())
        yield unit.nodes.http
        return
    with HttpServer(options.http_address, loading.pages()) as http:
        _log.info("serving /metrics, /healthz and /readyz at http://%s", http.address)
        yield http


def _log_ending(ending: Ending) -> None:
    match ending.kind:
        case EndKind.REFUSED:
            _log.error("the syncer refuses this learner: %s", ending.reason)
        case EndKind.STUCK:
            _log.error("ending: %s", ending.reason)
        case EndKind.FINISHED:
            _log.info("the job is over: %s", ending.reason)
        case EndKind.STOPPED:
            pass


@contextmanager
def _short_switch_interval() -> Iterator[None]:
    """Shorten the interpreter's switch interval: each torch call releases the interpreter, and other threads take it.

    Python's default of 5 ms is longer than all the work between two steps.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextmanager
def _signals(orders: Orders) -> Iterator[None]:
    """Make signals ask the inner loop to stop; further signals do nothing, as the end is bounded anyway."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _: FrameType | None) -> None:
        orders.stop(signal.Signals(number).name)

    before = {number: signal.signal(number, stop) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
