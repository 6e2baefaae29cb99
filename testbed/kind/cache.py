"""What the test bed keeps between runs: built tools, the kubeconfigs of its clusters, and what it has started.

Everything is below one folder, `$XDG_CACHE_HOME/decoupled-diloco` or `~/.cache/decoupled-diloco`. Only what its state
file names is ours to stop or delete.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class ClusterRecord:
    """A cluster that the test bed has made or begun to make."""

    identity: str
    """Its nodes carry it as a label: a name alone proves nothing."""
    complete: bool = False
    kept: bool = False
    """Whether it was brought up by hand (`make kind-up`) and stays when tests end."""


@dataclass(frozen=True)
class State:
    """What the test bed has started and is to stop."""

    clusters: dict[str, ClusterRecord] = field(default_factory=dict)
    engine_pid: int | None = None
    """The Docker engine, where it was started here."""
    engine_is_service: bool = False
    """Whether installing the engine's package has started it, as a system's service."""
    inotify_instances: int | None = None
    """The host's limit before it was raised."""

    def with_cluster(self, name: str, record: ClusterRecord) -> "State":
        return replace(self, clusters=self.clusters | {name: record})

    def without_cluster(self, name: str) -> "State":
        return replace(self, clusters={other: record for other, record in self.clusters.items() if other != name})


@dataclass(frozen=True)
class Cache:
    """The folder and what is where in it."""

    root: Path

    @classmethod
    def of_user(cls) -> "Cache":
        home = os.environ.get("XDG_CACHE_HOME", "")
        # A relative path must be ignored (XDG Base Directory Specification).
        base = Path(home) if home.startswith("/") else Path.home() / ".cache"
        cache = cls(base / "decoupled-diloco")
        cache.root.mkdir(parents=True, exist_ok=True)
        return cache

    def folder(self, name: str) -> Path:
        """A folder in it, made when asked for."""
        path = self.root / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def kubeconfig(self, cluster: str) -> Path:
        """Never the user's: nothing here can act on a cluster that the user has chosen."""
        return self.folder("kubeconfigs") / f"{cluster}.yaml"

    @property
    def state(self) -> State:
        try:
            raw = json.loads((self.root / "state.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return State()
        clusters = {name: _known(ClusterRecord, record) for name, record in raw.pop("clusters").items()}
        return _known(State, raw | {"clusters": clusters})

    def write(self, state: State) -> None:
        """Replace the state, at once or not at all."""
        new = self.root / "state.json.new"
        new.write_text(json.dumps(asdict(state), indent=2) + "\n", encoding="utf-8")
        new.replace(self.root / "state.json")

    @contextmanager
    def lock(self, what: str = "bed") -> Iterator[None]:
        """Only one process at a time brings clusters up or down, and one builds images; others wait."""
        with (self.folder("locks") / what).open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextmanager
    def using(self, cluster: str) -> Iterator[None]:
        """Mark the cluster as in use, so that the end of other tests does not remove it."""
        with self._users(cluster).open("a") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            yield

    def is_used(self, cluster: str) -> bool:
        with self._users(cluster).open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False

    def _users(self, cluster: str) -> Path:
        return self.folder("users") / cluster


def _known(kind: type[T], raw: dict[str, Any]) -> T:
    """A record, maybe of another version of this program: fields that are not known here are left out."""
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type] # both kinds are dataclasses
    return kind(**{name: value for name, value in raw.items() if name in known})
