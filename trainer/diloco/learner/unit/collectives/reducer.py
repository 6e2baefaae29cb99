"""Sums the gradients of copies of a model over the processes of a learner while the backward pass goes on.

Gradients go in buckets, one operation each, as in torch's DistributedDataParallel. That one sees only calls of its
wrapper, and a task may call parts of the model; this sees the gradients alone.
"""

from collections.abc import Iterable
from typing import Final
from weakref import WeakMethod

import torch
import torch.distributed as dist
from torch import Tensor, nn

from diloco.model import ModelError

_BUCKET_BYTES: Final = 25 << 20
"""As torch's: large enough for the network, and small enough to begin early."""
_ALIGNED: Final = 4
"""Values: fused optimizers read 16 bytes at once."""


class Reducer:
    """Of parameters that each process has whole. All processes sum the same buckets in the same order."""

    def __init__(self, parameters: Iterable[nn.Parameter], group: dist.ProcessGroup) -> None:
        """``parameters``: of f32, in the order in which the model uses them."""
        self.enabled = True
        """Whether the next backward pass is the last of the step; before that gradients only add up."""
        self._buckets: list[_Bucket] = []
        self._of: dict[nn.Parameter, _Bucket] = {}
        ready = WeakMethod(self._ready)  # torch does not collect a parameter whose hook refers to it

        def hook(parameter: Tensor) -> None:
            if (call := ready()) is not None:
                call(parameter)

        for one in reversed([one for one in parameters if one.requires_grad]):
            if not self._buckets or self._buckets[-1].size + one.numel() > _BUCKET_BYTES // one.element_size():
                self._buckets.append(_Bucket(group))
            self._of[one] = self._buckets[-1]
            self._buckets[-1].add(one)
            one.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]  # torch's own
        self._next = 0

    def _ready(self, parameter: Tensor) -> None:
        if not self.enabled:
            return
        assert isinstance(parameter, nn.Parameter), "hooks are only on these"
        if self._of[parameter] in self._buckets[: self._next]:
            raise ModelError(
                "model: a parameter gets its gradient twice in a step, by checkpoint(use_reentrant=True) or a loss "
                "that calls backward(); parallelism DDP cannot take it: use use_reentrant=False, return the loss"
            )
        self._of[parameter].waits_for.discard(parameter)
        while self._next < len(self._buckets) and not self._buckets[self._next].waits_for:
            self._start_next()

    def _start_next(self) -> None:
        self._buckets[self._next].start()
        self._next += 1

    def finish(self) -> None:
        """After the last backward pass: wait until all gradients are sums; one that no process has stays None."""
        while self._next < len(self._buckets):
            self._start_next()
        for bucket in self._buckets:
            bucket.finish()
        self._next = 0


class _Bucket:
    """Some parameters, whose gradients are summed in one operation."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._parameters: dict[nn.Parameter, tuple[int, tuple[int, ...]]] = {}
        """Where each one's gradient begins, and its strides: those of the parameter, which fused optimizers need."""
        self.size = 0
        self.waits_for: set[nn.Parameter] = set()
        self._sums: Tensor | None = None
        self._work: dist.Work | None = None

    def add(self, parameter: nn.Parameter) -> None:
        strides = torch.empty_like(parameter.detach(), device="meta").stride()
        self._parameters[parameter] = self.size, strides
        self.size += -(-parameter.numel() // _ALIGNED) * _ALIGNED
        self.waits_for.add(parameter)

    def start(self) -> None:
        """Begin to sum what there is; behind it stands for each parameter whether this process has used it."""
        device = next(iter(self._parameters)).device
        sums = torch.zeros(self.size + len(self._parameters), device=device)
        used = [one for one in self._parameters if one.grad is not None]
        views = [self._view(sums, one) for one in used]
        if used:
            torch._foreach_copy_(views, [one.grad for one in used if one.grad is not None])  # one pass
        for one, view in zip(used, views, strict=True):
            one.grad = view
        if len(used) == len(self._parameters):
            sums[self.size :] = 1
        else:
            for number, one in enumerate(self._parameters):
                if one.grad is not None:
                    sums[self.size + number] = 1
        self._sums = sums
        self._work = dist.all_reduce(sums, group=self._group, async_op=True)

    def finish(self) -> None:
        """Wait for the sums. A process that has not used a parameter has its gradient from the others."""
        assert self._sums is not None, "it has started"
        assert self._work is not None, "as above"
        self._work.wait()
        sums, self._sums, self._work = self._sums, None, None
        if any(one.grad is None for one in self._parameters):
            for one, users in zip(self._parameters, sums[self.size :].tolist(), strict=True):
                if users and one.grad is None:
                    one.grad = self._view(sums, one)
        self.waits_for.update(self._parameters)

    def _view(self, sums: Tensor, parameter: nn.Parameter) -> Tensor:
        first, strides = self._parameters[parameter]
        return sums.as_strided(parameter.shape, strides, first)
