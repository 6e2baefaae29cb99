"""The global model and the outer optimizer's momentum, in f32, fragment by fragment.

A fragment's current buffer is never written to again, and so is the mean of its last versions: pulls and checkpoints
under way keep reading it while the next version is made in a new one. Momentum is updated in place, except while a
checkpoint reads it. If updates to learners are encoded, the one that made the current version is kept with it, and so
is the residual of each fragment, which is treated like momentum.
"""

from collections.abc import Collection
from dataclasses import dataclass

import torch

from diloco.core.buffers import bytes_of, recycled
from diloco.core.fragments import Layout
from diloco.core.merge.fragment_merge import MergeTarget
from diloco.core.merge.member_sizes import NO_PAST, UsualSize
from diloco.wire.part_messages import payload_digest


@dataclass(frozen=True, slots=True)
class EncodedUpdate:
    """Turns one version of a fragment into the next, for learners that hold the first."""

    base_version: int
    codec: str
    payload: torch.Tensor
    """uint8, flat. Never written to."""
    digest: bytes
    """Of the payload."""

    @property
    def view(self) -> memoryview:
        """The bytes; the view keeps the buffer alive."""
        return bytes_of(self.payload)


@dataclass(frozen=True, slots=True)
class StoredFragment:
    """One version of a fragment."""

    version: int
    parameters: torch.Tensor
    """f32, shape (numel,). Never written to."""
    digest: bytes
    """Of its bytes."""
    update: EncodedUpdate | None = None
    """Update from the version before; None: every learner gets the whole fragment."""

    @property
    def view(self) -> memoryview:
        """The bytes; the view keeps the buffer alive."""
        return bytes_of(self.parameters)


@dataclass(frozen=True, slots=True)
class StoreImage:
    """The whole store at one moment, for a checkpoint. Nothing that is held of it changes until it is released."""

    fragments: tuple[StoredFragment, ...]
    momentum: tuple[torch.Tensor, ...]
    """f32, shape (numel,) each."""
    residuals: tuple[torch.Tensor, ...] = ()
    """What the encoding of updates has left over, f32, shape (numel,) each; empty if updates are not encoded."""
    usual: tuple[UsualSize, ...] = ()
    """Of each fragment's outer gradients."""
    means: tuple[torch.Tensor | None, ...] = ()
    """Of each fragment's last versions, f32, shape (numel,) each. Never written to. None, or empty: there is none."""

    @property
    def versions(self) -> tuple[int, ...]:
        """Of each fragment."""
        return tuple(fragment.version for fragment in self.fragments)

    @property
    def size_bytes(self) -> int:
        """Bytes of all its tensors."""
        parameters = (fragment.parameters for fragment in self.fragments)
        means = (mean for mean in self.means if mean is not None)
        return sum(tensor.nbytes for tensor in (*parameters, *self.momentum, *self.residuals, *means))


@dataclass(frozen=True, slots=True)
class NextVersion:
    """Buffers for the next version of a fragment."""

    merge: MergeTarget
    rest: torch.Tensor | None
    """The new residual, f32, shape (numel,); may be the current one. None: updates are not encoded."""
    usual: UsualSize = NO_PAST
    """Of the fragment's outer gradients, this merge included."""
    mean: torch.Tensor | None = None
    """Of the fragment's last versions, f32, shape (numel,); None: there is none."""


class FragmentStore:
    """Current version, momentum and, if configured, residual and a few older versions of every fragment.

    Owned by the event loop; a merge in another thread only writes to the target it was given.
    """

    def __init__(self, layout: Layout, *, older_versions: int = 0, residuals: bool = False) -> None:
        """Start empty; ``put`` every fragment before use.

        ``older_versions``: how many before the current one are kept, to measure drift from. ``residuals``: whether
        updates are encoded, so that their residuals are kept.
        """
        self._layout = layout
        self._older_versions = older_versions
        self.keeps_residuals = residuals
        self._current: dict[int, StoredFragment] = {}
        self._momentum: dict[int, torch.Tensor] = {}
        self._residuals: dict[int, torch.Tensor] = {}
        self._usual: dict[int, UsualSize] = {}
        self._means: dict[int, torch.Tensor | None] = {}
        self._older: dict[int, dict[int, torch.Tensor]] = {fragment.index: {} for fragment in layout.fragments}
        self._held: set[int] = set()

    @property
    def versions(self) -> tuple[int, ...]:
        """Current version of every fragment."""
        return tuple(self._current[fragment.index].version for fragment in self._layout.fragments)

    def put(  # noqa: PLR0913, PLR0917 - as a checkpoint's file has them
        self,
        fragment: int,
        version: int,
        parameters: torch.Tensor,
        momentum: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,
        mean: torch.Tensor | None = None,
    ) -> None:
        """Set a fragment at the start. All f32, shape (numel,), and owned by the store from then on; None: zeros.

        ``mean``: of its last versions; None: there is none.

        If updates are no longer encoded, a residual is added to the parameters: it is part of the model.
        """
        if residual is not None and not self.keeps_residuals:
            parameters.add_(residual)
        self._current[fragment] = StoredFragment(version, parameters, digest_of(parameters))
        self._momentum[fragment] = torch.zeros_like(parameters) if momentum is None else momentum
        self._means[fragment] = mean
        if self.keeps_residuals:
            self._residuals[fragment] = torch.zeros_like(parameters) if residual is None else residual

    def current(self, fragment: int) -> StoredFragment:
        """The current version of a fragment."""
        return self._current[fragment]

    def momentum(self, fragment: int) -> torch.Tensor:
        """The outer momentum of a fragment, f32, shape (numel,)."""
        return self._momentum[fragment]

    def residual(self, fragment: int) -> torch.Tensor | None:
        """What updates of a fragment have left over, f32, shape (numel,); None if updates are not encoded."""
        return self._residuals.get(fragment)

    def mean(self, fragment: int) -> torch.Tensor | None:
        """The mean of a fragment's last versions, f32, shape (numel,); None if there is none."""
        return self._means.get(fragment)

    def usual(self, fragment: int) -> UsualSize:
        """The usual size of a fragment's outer gradients."""
        return self._usual.get(fragment, NO_PAST)

    def set_usual(self, fragment: int, usual: UsualSize) -> None:
        """Set the usual size at the start."""
        self._usual[fragment] = usual

    def base(self, fragment: int, version: int) -> torch.Tensor | None:
        """Parameters of the current or an older version, f32, shape (numel,); None if it is not kept."""
        current = self._current[fragment]
        return current.parameters if version == current.version else self._older[fragment].get(version)

    def target(self, fragment: int) -> NextVersion:
        """New parameters; momentum and residual in place, unless a checkpoint reads them."""
        momentum, residual = self._momentum[fragment], self._residuals.get(fragment)
        fresh = fragment in self._held
        return NextVersion(
            MergeTarget(
                parameters=_like(momentum),
                momentum=_like(momentum) if fresh else momentum,
            ),
            rest=_like(residual) if fresh and residual is not None else residual,
        )

    def commit(
        self, fragment: int, version: int, made: NextVersion, digest: bytes, update: EncodedUpdate | None = None
    ) -> None:
        """Make a merge's result the current version."""
        previous = self._current[fragment]
        if self._older_versions:
            older = self._older[fragment]
            older[previous.version] = previous.parameters
            for old in sorted(older)[: -self._older_versions]:
                del older[old]
        self._current[fragment] = StoredFragment(version, made.merge.parameters, digest, update)
        self._momentum[fragment] = made.merge.momentum
        self._usual[fragment] = made.usual
        self._means[fragment] = made.mean
        if made.rest is not None:
            self._residuals[fragment] = made.rest

    def hold(self, but: Collection[int] = ()) -> StoreImage:
        """The store as it is now; of the fragments in ``but``, nobody reads momentum and residual.

        No merge may be running: its momentum would be half old, half new.
        """
        order = [fragment.index for fragment in self._layout.fragments]
        self._held = set(order).difference(but)
        return StoreImage(
            tuple(self._current[p] for p in order),
            tuple(self._momentum[p] for p in order),
            tuple(self._residuals[p] for p in order) if self.keeps_residuals else (),
            tuple(self.usual(p) for p in order),
            tuple(self.mean(p) for p in order),
        )

    def release(self) -> None:
        """Note that the image is no longer read: momentum and residuals are updated in place again."""
        self._held = set()


def _like(values: torch.Tensor) -> torch.Tensor:
    return recycled(values.numel(), torch.float32)


def digest_of(tensor: torch.Tensor) -> bytes:
    """The digest of a contiguous host tensor's bytes, as transfers have it."""
    return payload_digest(bytes_of(tensor))
