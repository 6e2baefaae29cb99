"""Whether the processes that call one loop train one model together."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import xxhash
from torch import nn

from diloco.learner.data.own_code import OwnCode
from diloco.learner.data.source import DataUnavailableError
from diloco.learner.session.loop_state import reshard
from diloco.learner.session.peers import LateError, SessionWorld
from diloco.model.constants import tensor_digest
from diloco.model.fragments import trained_parameters
from diloco.model.sharded import is_parted
from diloco.spec import JobSpec

Parameters = Mapping[str, nn.Parameter]

_SHARE_OF_STUCK: Final = 0.8
"""Of the time after which the syncer has a learner restarted, which tells less (ours)."""


class Together:
    """Sees after each step that all processes have made the same."""

    def __init__(self, job: JobSpec, world: SessionWorld, module: nn.Module, code: OwnCode) -> None:
        self.world = world
        self._module, self._parameters, self._code = module, trained_parameters(module), code
        stuck, startup = job.failure_policy.stuck_seconds or float("inf"), job.sync.startup_seconds
        self._startup_seconds = startup
        self._first_seconds = _SHARE_OF_STUCK * max(stuck, startup)
        self._seconds = _SHARE_OF_STUCK * stuck
        self._met = False

    def enter(self, stopping: Callable[[], bool]) -> None:
        """Wait until all processes enter the session.

        Raises:
            DataError: some do not.
            DataStoppedError: this process is asked to stop, says ``stopping``.
        """
        try:
            self.world.every([0], self._startup_seconds, stopping)
        except LateError as error:
            text = f"{error} of its processes did not enter its session for {self._startup_seconds} s after the others"
            raise self._code.mistake(f"{text}; enter it in all processes") from error

    def meet(self, steps: int) -> None:
        """Wait until all processes have made ``steps`` of the optimizer, and see that they have.

        Raises:
            DataUnavailableError: some do not call ``step()``.
            DataError: some have made another number of steps, or have other values after the first.
        """
        reshard(self._module)
        digest = 0 if self._met else _digest_of_copies(self._parameters)
        patience = self._seconds if self._met else self._first_seconds
        try:
            every = self.world.every([steps, digest], patience)
        except LateError as error:
            text = f"{error} of its processes did not call step() for {patience:.0f} s after the others; call it in all"
            raise DataUnavailableError(str(self._code.mistake(f"{text} after the same steps"))) from error
        for rank, (made, theirs) in enumerate(every):
            if made != every[0][0]:
                raise self._code.mistake(
                    f"step() was called in rank {rank} after {made} steps of the optimizer, in rank 0 after "
                    f"{every[0][0]}; call it after the same steps in all processes"
                )
            if theirs != every[0][1]:
                raise self._code.mistake(
                    f"after a step rank {rank} has other values than rank 0; average gradients among the processes "
                    "(DistributedDataParallel), or shard the model (fully_shard)"
                )
        self._met = True


def _digest_of_copies(parameters: Parameters) -> int:
    """Of the values that all processes have alike, 63 bits."""
    digest = xxhash.xxh3_64()
    for name, one in parameters.items():
        if not is_parted(one):
            digest.update(tensor_digest(name, one).encode())
    return digest.intdigest() >> 1


def parting_of(parameters: Parameters) -> str:
    """How parameters are parted among processes, as text."""
    kinds = set()
    for one in parameters.values():
        parted: Any = one
        kinds.add(f"{parted.placements} of {tuple(parted.device_mesh.shape)}" if is_parted(one) else "whole")
    return " and ".join(sorted(kinds))


def check_meshes(parameters: Parameters, ranks: int, code: OwnCode) -> None:
    """Check that each parted parameter is parted among all processes.

    Raises:
        DataError: one is on a smaller mesh.
    """
    for name, one in parameters.items():
        parted: Any = one
        if is_parted(one) and (size := parted.device_mesh.size()) != ranks:
            raise code.mistake(
                f"{name} is on a mesh of {size} of its {ranks} processes; use one of all of them, with a dimension of "
                "copies if you like"
            )
