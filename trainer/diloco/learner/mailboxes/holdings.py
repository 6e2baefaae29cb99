"""The current admission, and which versions of the model the learner holds under it.

An order, a push or a merged fragment of an earlier admission must not be mistaken for one of the current admission: a
restarted syncer counts versions from its checkpoint on, so equal numbers can stand for different weights.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Membership:
    """One admission to the job."""

    epoch: str
    """The syncer process's epoch; version numbers are only comparable within one."""
    incarnation: int


@dataclass(frozen=True, slots=True)
class Held:
    """A version of a fragment, bit for bit, that an update can be added to."""

    version: int
    values: "Tensor"
    """f32, flat, on the host: the trainer's anchor itself. Never written to."""


class Holdings:
    """Versions of the fragments that the inner loop trains on. Used by several threads."""

    def __init__(self, fragments: int) -> None:
        self._lock = threading.Lock()
        self._epoch = ""
        self._versions: list[int | None] = [None] * fragments
        self._values: list[Tensor | None] = [None] * fragments
        self._awaited: set[int] = set()
        self._membership: Membership | None = None

    def admitted(self, membership: Membership, load: Iterable[int]) -> bool:
        """Note an admission; ``load`` names fragments that do not count as held. Returns whether none is awaited."""
        with self._lock:
            self._membership = membership
            if membership.epoch != self._epoch:
                self._epoch = membership.epoch
                self._versions = [None] * len(self._versions)
                self._values = [None] * len(self._values)
            self._awaited = set(load)
            for fragment in self._awaited:
                self._versions[fragment] = self._values[fragment] = None
            return not self._awaited

    def awaits(self, fragment: int) -> bool:
        """Whether the learner must receive this fragment before it trains under its admission."""
        with self._lock:
            return fragment in self._awaited

    def is_news(self, epoch: str, fragment: int, version: int) -> bool:
        """Whether this version is newer than what is held."""
        with self._lock:
            held = self._versions[fragment]
            return epoch == self._epoch and (held is None or held < version)

    def received(self, epoch: str, fragment: int, version: int, values: "Tensor | None" = None) -> Membership | None:
        """Note that the inner loop now trains on this version. Returns the admission if it was the last one awaited.

        ``values``: what was received, f32, flat, on the host; the caller must not write to it any more.
        """
        with self._lock:
            if epoch != self._epoch:
                return None
            self._versions[fragment], self._values[fragment] = version, values
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
