"""The current admission, the versions of the model that the learner holds under it, and those that arrive.

An order, a push or a merged fragment of an earlier admission must not be mistaken for one of the current admission: a
restarted syncer counts versions from its checkpoint on, so equal numbers can stand for different weights.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diloco.learner.exchange.orders import Membership, Wakeup

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Held:
    """A version of a fragment, bit for bit, that an update can be added to."""

    version: int
    values: "Tensor"
    """f32, flat, on the host: the trainer's anchor itself. Never written to."""


@dataclass(frozen=True, slots=True)
class MergedFragment:
    """A complete fragment that waits for the training thread."""

    epoch: str
    fragment: int
    version: int
    values: "Tensor"
    """f32, flat, on the host; never written to again."""


class Holdings:
    """Of each fragment: the version trained on, and at most one newer one, complete, that waits to be swapped in.

    The loop adds what arrives, and the training thread takes it: so it only ever gets complete fragments, and at most
    one copy of the model waits on the host, however slow the one or fast the other.
    """

    def __init__(self, wakeup: Wakeup, fragments: int) -> None:
        self._wakeup = wakeup
        self._lock = threading.Lock()
        self._epoch = ""
        self._versions: list[int | None] = [None] * fragments
        self._values: list[Tensor | None] = [None] * fragments
        self._awaited: set[int] = set()
        self._membership: Membership | None = None
        self._waiting: dict[int, MergedFragment] = {}
        self._taken: dict[int, int] = {}
        """Versions that were taken last; they may still be being copied into the model."""

    def admitted(self, membership: Membership, load: Iterable[int]) -> bool:
        """Note an admission; ``load`` names fragments that do not count as held. Returns whether none is awaited."""
        with self._lock:
            self._membership = membership
            if membership.epoch != self._epoch:
                self._epoch = membership.epoch
                self._versions = [None] * len(self._versions)
                self._values = [None] * len(self._values)
                self._waiting.clear()
            self._taken.clear()  # what is to be loaded is loaded again
            self._awaited = set(load)
            for fragment in self._awaited:
                self._versions[fragment] = self._values[fragment] = None
            return not self._awaited

    def awaits(self, fragment: int) -> bool:
        """Whether the learner must receive this fragment before it trains under its admission."""
        with self._lock:
            return fragment in self._awaited

    def lacks(self, epoch: str, fragment: int, version: int) -> bool:
        """Whether this version is newer than what is held, waits or is being swapped in."""
        with self._lock:
            return self._lacks(epoch, fragment, version)

    def arrived(self, arrival: MergedFragment) -> None:
        """Add a complete fragment, unless there is one as new: a pull and a posted one may both bring it."""
        with self._lock:
            if not self._lacks(arrival.epoch, arrival.fragment, arrival.version):
                return
            self._waiting[arrival.fragment] = arrival
        self._wakeup.notify()

    def take(self) -> list[MergedFragment]:
        """Take everything that waits, for the training thread, which calls ``received`` for each."""
        if not self._waiting:  # without the lock: a fragment that is added now is taken after the next step
            return []
        with self._lock:
            taken = list(self._waiting.values())
            self._waiting.clear()
            self._taken |= {one.fragment: one.version for one in taken}
            return taken

    def received(self, arrival: MergedFragment) -> Membership | None:
        """Note that the learner now trains on it. Returns the admission if it was the last one awaited."""
        with self._lock:
            fragment = arrival.fragment
            if arrival.epoch != self._epoch:
                return None
            self._versions[fragment], self._values[fragment] = arrival.version, arrival.values
            was_awaited = fragment in self._awaited
            self._awaited.discard(fragment)
            return self._membership if was_awaited and not self._awaited else None

    def held(self, epoch: str, fragment: int) -> Held | None:
        """The version and values held of a fragment under this epoch, read together; None: nothing."""
        with self._lock:
            version, values = self._versions[fragment], self._values[fragment]
            return (
                Held(version, values) if epoch == self._epoch and version is not None and values is not None else None
            )

    @property
    def complete(self) -> bool:
        """Whether every fragment of the current epoch is held and none is awaited."""
        with self._lock:
            return not self._awaited and None not in self._versions

    def to_join_with(self) -> tuple[str, tuple[int, ...]]:
        """Epoch and versions for a Join; ("", ()) unless the whole model is held."""
        with self._lock:
            versions = tuple(version for version in self._versions if version is not None)
            return (self._epoch, versions) if len(versions) == len(self._versions) else ("", ())

    def versions(self) -> tuple[int | None, ...]:
        """Versions held, by fragment."""
        with self._lock:
            return tuple(self._versions)

    def _lacks(self, epoch: str, fragment: int, version: int) -> bool:
        waiting = self._waiting.get(fragment)
        here = (self._versions[fragment], self._taken.get(fragment), None if waiting is None else waiting.version)
        return epoch == self._epoch and all(one is None or one < version for one in here)
