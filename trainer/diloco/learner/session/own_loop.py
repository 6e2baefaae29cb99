"""Calls the job's own loop in a learner's process, and sees that it goes on until the end."""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from diloco.core.fragments import LayoutError
from diloco.learner.data import DataError, DataUnavailableError
from diloco.learner.data.own_code import OwnCode
from diloco.learner.data.source import DataStoppedError
from diloco.learner.exchange.orders import Ending, Orders
from diloco.learner.job_training import Training
from diloco.learner.learner import Learner
from diloco.learner.session.following import Following, FollowingTrainer
from diloco.learner.session.job_session import Begin, Session, SessionError, SessionOverError
from diloco.learner.session.leading import Leading, LeadingTrainer
from diloco.learner.session.loop_state import LearnerOfJob, Parts, reshard
from diloco.learner.session.peers import LateError, Peers, SessionWorld
from diloco.learner.session.stop_handlers import StopHandlers
from diloco.learner.session.together import Together, check_meshes, parting_of
from diloco.learner.session.trainer import SessionTrainer
from diloco.learner.session.unwrapped import unwrapped
from diloco.learner.training.devices.device import set_up
from diloco.learner.unit.checkpoints import RankCheckpoints
from diloco.learner.unit.joining import UnitError, facts_of
from diloco.model.build import build_model
from diloco.model.entrypoint import EntrypointError, load_entrypoint
from diloco.model.fragments import layout_of, trained_parameters
from diloco.model.sharded import is_parted

_log = logging.getLogger(__name__)
_FIELD: Final = "loop.entrypoint"


def session(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *,
    evaluate: Callable[[nn.Module], float | Tensor],
) -> Session:
    """This process's part in its job: ``with diloco.session(...) as s:`` around a loop that calls ``s.step()``.

    Args:
        model: the one that the loop was called with, on its device, or one that a framework has built alike.
        optimizer: it has every trained parameter of the model, and no other; or several that have them together.
        evaluate: returns the held-out loss of the model, which has the job's values then, and is in evaluation mode.

    Raises:
        SessionError: this process is no learner, or its job has no loop.
        DataError: model or optimizer cannot be used; or it is called twice.
    """
    loop = _Current.loop
    if loop is None:
        use = "name the loop as spec.loop, and use 'diloco run'"
        raise SessionError(f"diloco.session: has a use only in a learner; {use}")
    return loop.session(model, optimizer, evaluate)


class OwnLoop:
    """The loop that a job's manifest names."""

    def __init__(
        self,
        options: LearnerOfJob,
        device: torch.device,
        orders: Orders,
        begin: Callable[[Training], Learner] | None,
        peers: Peers | None = None,
    ) -> None:
        """Build the model on the device.

        Args:
            options: which learner this is.
            device: this process's.
            orders: whether the process is to stop.
            begin: makes the process's learner; None: another process has it.
            peers: the processes of the learner, if they are several.

        Raises:
            ModelError, LayoutError: this machine lacks what the job asks for.
            DataError: the entrypoint cannot be loaded.
        """
        self._handlers = StopHandlers()
        set_up(options.job.spec.training, device, options.directory)  # before the loop's code, which may set otherwise
        if peers is not None:
            peers.set_environment()
        spec = options.job.spec
        assert spec.loop is not None, "the caller has looked"
        self._options, self._orders, self._begin, self._peers = options, orders, begin, peers
        self._arguments = spec.loop.arguments
        self._code = OwnCode(_FIELD, spec.loop.entrypoint)
        try:
            self._function = load_entrypoint(spec.loop.entrypoint, _FIELD)
        except EntrypointError as error:
            raise DataError(str(error)) from error
        self._module = build_model(spec)
        self._layout = layout_of(self._module, spec.sync.fragments)
        self._module.to(device)
        self._session: Session | None = None
        self._failure: DataError | UnitError | None = None

    def session(self, model: nn.Module, optimizer: object, evaluate: Callable[[nn.Module], float | Tensor]) -> Session:
        """See ``diloco.session``."""
        try:
            if self._session is not None:
                raise self._code.mistake("calls diloco.session twice; call it once")
            parts = Parts(unwrapped(model), self._optimizers(optimizer), partial(evaluate, model))
            if not self._is_as_built(parts.module):
                if model is not self._module:
                    text = "gives diloco.session another model; give it the one that it was called with"
                    raise self._code.mistake(text)
                text = "changes the model before its session; freeze, replace and load in model.entrypoint"
                raise self._code.mistake(text + "; shard it with fully_shard" * (self._peers is not None))
            self._session = Session(self._options, *self._begun_by(parts))
        except (DataError, UnitError) as error:
            self._failure = error
            raise
        return self._session

    def _begun_by(self, parts: Parts) -> tuple[SessionTrainer | FollowingTrainer, OwnCode, Begin]:
        """The trainer, and what makes the learner's part of a session."""
        options, code, begin, peers = self._options, self._code, self._begin, self._peers
        if peers is None:
            alone = SessionTrainer(options, self._layout, parts, code)
            assert begin is not None, "it has no other process"
            return alone, code, lambda: begin(Training(alone, None, 0.0))
        reshard(parts.module)
        world = self._world(parts.module, peers)
        together = Together(options.job.spec, world, parts.module, code)
        if begin is None:
            follows = FollowingTrainer(options, self._layout, parts, code, world)
            kept = RankCheckpoints(peers.checkpoints, follows.kept, world, peers.processes)

            def followed() -> Following:
                self._enter(together)
                return Following(follows, together, kept, self._handlers)

            return follows, code, followed
        leads = LeadingTrainer(options, self._layout, parts, code, world)

        def end() -> None:
            peers.release()
            with suppress(RuntimeError):  # one has ended already
                leads.end()

        def led() -> Leading:
            self._enter(together)  # the learner reads checkpoints with the others
            return Leading(begin(Training(leads, None, 0.0, peers.ranks, end)), leads, together, self._handlers)

        return leads, code, led

    def _enter(self, together: Together) -> None:
        self._handlers.restore()
        together.enter(lambda: self._orders.stopping)

    def _world(self, model: nn.Module, peers: Peers) -> SessionWorld:
        """The connections to the learner's other processes, once all have a session."""
        self._handlers.restore()
        spec, parameters = self._options.job.spec, trained_parameters(model)
        check_meshes(parameters, peers.ranks, self._code)
        facts = facts_of(spec, self._layout) | {"how the model is sharded": parting_of(parameters)}
        seconds, device = spec.sync.startup_seconds, next(model.parameters()).device
        try:
            return peers.connected(facts, device, seconds, lambda: self._orders.stopping)
        except LateError as error:
            text = f"{error} of its processes called no diloco.session in {seconds} s; call it in all processes"
            raise self._code.mistake(text) from error

    def _optimizers(self, given: object) -> list[torch.optim.Optimizer]:
        found = [_inner(one) for one in (given if isinstance(given, list | tuple) and given else [given])]
        for one in found:
            if not isinstance(one, torch.optim.Optimizer):
                kind = type(one).__name__
                raise self._code.mistake(f"gives diloco.session a {kind}; give it a torch.optim.Optimizer, or a list")
        return found

    def _is_as_built(self, model: nn.Module) -> bool:
        try:
            found = layout_of(model, self._options.job.spec.sync.fragments)
        except LayoutError:  # fewer parameters are left than fragments
            return False
        # Of a frozen parameter that is sharded, a process has not all values.
        partly = any(is_parted(one) and not one.requires_grad for one in model.parameters())
        return found.cut == self._layout.cut if partly else found.digest == self._layout.digest

    def run(self) -> Ending:
        """Call the loop, until the job is over or this process is to stop; the learner has shut down then.

        Raises:
            DataError: the loop has raised, or has returned too early.
            DataUnavailableError: it has raised after a step, which may go well in another process.
            DataStoppedError: it was asked to stop before it had a session.
            BaseException: what the learner has failed with.
        """
        _Current.loop = self
        raised: BaseException | None = None
        try:
            self._code.call("it", self._function, self._module, **self._arguments)
        except (Exception, SessionOverError) as error:  # noqa: BLE001  # raised below, unless there is a better reason
            raised = error
        finally:
            _Current.loop = None
        return self._ended(raised)

    def _ended(self, raised: BaseException | None) -> Ending:
        made = self._session
        failure = self._failure or (None if made is None else made.failure)
        if failure is not None:
            raise failure
        stops = self._orders.ending()
        if made is not None and stops is not None:  # a framework may end by itself when the process is to stop
            if self._peers is not None and made.ending is None:
                raise DataStoppedError("stopping outside of step(): the other processes take no orders there")
            made.end(stops)
        if made is not None and made.began is not None and made.ending is not None:
            if raised is not None:
                _log.warning("after the end: %s", raised)
            return made.ending
        if stops is not None:
            raise DataStoppedError("stopping before the loop has entered its session")
        if made is not None and made.stepped and isinstance(raised, DataError):
            raise DataUnavailableError(str(raised)) from raised
        if raised is not None:
            raise raised
        if made is None or made.began is None:
            raise self._code.mistake("returned without entering a diloco.session; train inside of one")
        raise self._code.mistake("returned before the job was complete; go on until step() returns False")


def _inner(optimizer: Any) -> Any:
    """The one that makes the steps: accelerate's wrapper is an Optimizer without what torch's constructor makes."""
    inner = getattr(optimizer, "optimizer", None)
    is_wrapper = isinstance(inner, torch.optim.Optimizer) and not hasattr(optimizer, "_optimizer_step_post_hooks")
    return _inner(inner) if is_wrapper else optimizer


class _Current:
    """The loop that this process calls; None: it calls none."""

    loop: OwnLoop | None = None
