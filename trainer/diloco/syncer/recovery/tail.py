"""What an epoch's tape records beyond a checkpoint: versions that were merged after it, and the engine at its end.

A restarted syncer may go on from there instead of from the checkpoint, as far as the fragments of these versions are
found. The caller reads the tape and passes every entry on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from typing import Any

from diloco.core.engine.actions import Action
from diloco.core.engine.engine import Engine
from diloco.core.engine.events import Event, Merged, Proved
from diloco.spec.status.engine import PRESENT, Phase


@dataclass(frozen=True, slots=True)
class MadeVersion:
    """A version of a fragment that was made after the checkpoint."""

    version: int
    digest: str
    """xxh3-128 of its f32 bytes, hexadecimal."""
    steps: int
    """Steps of the outer optimizer since the checkpoint: merges that failed made none."""
    tokens: int
    """Tokens merged into the fragment, over the whole job."""
    proof: str = ""
    """`core.proof` of it; empty: the syncer ended before it was known."""


class Tail:
    """Follows an engine from the beginning of a tape, or of a segment, to its end."""

    def __init__(self, engine: Engine, saved: Mapping[str, Any], shares: Sequence[float]) -> None:
        """Follow ``engine`` beyond the state of ``saved``, the snapshot of a checkpoint.

        ``shares``: each fragment's share of the model.
        """
        self._engine = engine
        self._shares = shares
        self._saved = saved
        self._now = 0.0
        self._reached_at: float | None = None
        self._made: list[list[MadeVersion]] = [[] for _ in engine.versions]
        self._digests: dict[int, tuple[int, str]] = {}
        self._look()

    @property
    def reached(self) -> bool:
        """Whether the engine has been in the checkpoint's state: only then does the tape continue the checkpoint."""
        return self._reached_at is not None

    @property
    def seconds(self) -> float:
        """Time on the tape since the checkpoint's state."""
        return 0.0 if self._reached_at is None else self._now - self._reached_at

    @property
    def made(self) -> tuple[tuple[MadeVersion, ...], ...]:
        """By fragment, the versions that were made after the checkpoint, oldest first."""
        return tuple(tuple(versions) for versions in self._made)

    @property
    def digests(self) -> dict[int, tuple[int, str]]:
        """By fragment, the version in the checkpoint and its xxh3-128, as far as the tape has them."""
        return dict(self._digests)

    @property
    def present(self) -> frozenset[str]:
        """Learners that had a session at the end."""
        return frozenset(one.id for one in self._engine.view(self._now).learners if one.state in PRESENT)

    @property
    def known(self) -> frozenset[str]:
        """All learners that the engine has a record of."""
        return frozenset(one.id for one in self._engine.view(self._now).learners)

    def step(self, event: Event, now: float) -> list[Action]:
        """Pass the tape's next event to the engine; returns its actions."""
        before = self._engine.versions[event.fragment] if isinstance(event, Merged) else 0
        actions = self._engine.step(event, now)
        self._now = now
        if isinstance(event, Merged) and self._engine.versions[event.fragment] != before:
            if self.reached:
                self._record(event)
            else:
                self._digests[event.fragment] = (event.version, event.digest)
                self._look()
        elif isinstance(event, Proved):
            made = self._made[event.fragment]
            made[:] = [replace(one, proof=event.proof) if one.version == event.version else one for one in made]
        return actions

    def snapshot(self, versions: Sequence[int]) -> dict[str, Any]:
        """The engine's snapshot at the end of the tape, as if later merges than these ``versions`` had not been made.

        Each of ``versions`` is the checkpoint's, or one of ``made``.
        """
        end = self._engine.snapshot(self._now)
        if tuple(versions) == self._engine.versions:
            return end
        tokens = [
            next((one.tokens for one in made if one.version == version), saved)
            for version, made, saved in zip(versions, self._made, self._saved["fragment_tokens"], strict=True)
        ]
        kept = self._share_kept(tokens, end["fragment_tokens"])
        for name, learner in end["learners"].items():  # whose merges are missing is not looked up: each its share
            before = float(self._saved["learners"].get(name, {}).get("merged_tokens", 0.0))
            counted = zip(learner["counted_in"], versions, strict=False)
            learner["counted_in"] = [one if one <= version else 0 for one, version in counted]
            learner["merged_tokens"] = before + kept * (float(learner["merged_tokens"]) - before)
        if end["phase"] in (Phase.COMPLETE, Phase.FAILED):
            # It is over only with all of its merges. Its last evaluation was of a model that is not there.
            for name in ("phase", "phase_reason", "evaluations", "evaluations_ordered", "next_evaluation_tokens"):
                end[name] = self._saved[name]
        return end | {"versions": list(versions), "fragment_tokens": tokens}

    def _look(self) -> None:
        """Note when the engine is in the checkpoint's state. Versions only grow, so that the first time is the one."""
        engine, saved = self._engine, self._saved
        if (list(engine.versions), list(engine.fragment_tokens)) == (saved["versions"], saved["fragment_tokens"]):
            self._reached_at = self._now

    def _record(self, event: Merged) -> None:
        made = self._made[event.fragment]
        steps = (made[-1].steps if made else 0) + (not event.failed)
        tokens = self._engine.fragment_tokens[event.fragment]
        made.append(MadeVersion(event.version, event.digest, steps, tokens))

    def _share_kept(self, tokens: Sequence[int], end: Sequence[int]) -> float:
        """Share of the tokens merged after the checkpoint that stays merged."""
        saved = self._saved["fragment_tokens"]
        kept, every = (
            fsum(share * (now - before) for share, now, before in zip(self._shares, counts, saved, strict=True))
            for counts in (tokens, end)
        )
        return kept / every if every else 1.0
