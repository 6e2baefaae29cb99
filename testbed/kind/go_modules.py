"""Builds programs from the Go module proxy, each once for each version.

A module is built as a requirement of an empty module of our own: that takes the same versions of everything as its
authors' module file asks for, and needs no checkout. Its `replace` lines do not count there; Kubernetes, whose parts
are replaced by folders beside them, gets them replaced by their published versions.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from testbed.kind.cache import Cache
from testbed.kind.commands import CommandFailedError, Unavailable, on_path, run, step
from testbed.kind.versions import version_in

_FIRST_GO = (1, 21, 0)  # fetches a newer one by itself where a module asks for it
_STAGED = re.compile(r"^\s+(k8s\.io/[a-z0-9-]+) => \./staging/", re.MULTILINE)


@dataclass(frozen=True)
class Module:
    """A version of a module and the programs wanted of it."""

    path: str
    version: str
    programs: tuple[tuple[str, str], ...]
    """(name, package's path below the module's, or '')"""
    version_variables: tuple[str, ...] = ()
    """Variables that are to say the version, as the authors' own build sets them."""

    def package(self, below: str) -> str:
        return f"{self.path}/{below}" if below else self.path


@dataclass(frozen=True)
class Go:
    """The Go toolchain and where it puts what it builds."""

    executable: Path
    cache: Cache

    @classmethod
    def find(cls, cache: Cache) -> "Go":
        """The user's.

        Raises:
            Unavailable: There is none, or too old a one.
        """
        executable = on_path("go")
        if executable is None:
            raise Unavailable("no Go on PATH to build what cannot be pulled")
        version = version_in(run(executable, "version").replace("go version go", "").split(" ")[0] + ".0")
        if version is None or version < _FIRST_GO:
            raise Unavailable("the Go on PATH is older than 1.21")
        return cls(executable, cache)

    def download(self, path: str, version: str) -> dict[str, str]:
        """A module in Go's own cache: `Dir` is where, `GoMod` its module file.

        Raises:
            Unavailable: It cannot be had.
        """
        folder = self.cache.folder("go/downloads")
        (folder / "go.mod").write_text("module downloads\n", encoding="utf-8")
        found: dict[str, str] = json.loads(self._go(folder, "mod", "download", "-json", f"{path}@v{version}"))
        return found

    def build(self, module: Module) -> dict[str, Path]:
        """The module's programs by name, built if they are not there yet.

        Raises:
            Unavailable: They cannot be fetched or built.
        """
        target = programs_folder(self.cache, module)
        wanted = {name: package for name, package in module.programs if not (target / name).exists()}
        if wanted:
            folder = self._module_of_our_own(module)
            for name, below in wanted.items():
                with step(f"building {name} {module.version}"):
                    self._build(folder, module, below, target / name)
        return {name: target / name for name, _ in module.programs}

    def _build(self, folder: Path, module: Module, below: str, target: Path) -> None:
        flags = " ".join(["-s", "-w", *(f"-X {name}=v{module.version}" for name in module.version_variables)])
        unfinished = target.with_name(f"{target.name}.unfinished")
        self._go(folder, "build", "-ldflags", flags, "-o", str(unfinished), module.package(below))
        unfinished.rename(target)

    def _module_of_our_own(self, module: Module) -> Path:
        folder = self.cache.folder(f"go/{module.path.replace('/', '_')}-{module.version}")
        lines = ["module programs", "", "go 1.21", ""]
        if module.path == "k8s.io/kubernetes":
            module_file = Path(self.download(module.path, module.version)["GoMod"]).read_text(encoding="utf-8")
            lines += published_staging(module_file, module.version)
        (folder / "go.mod").write_text("\n".join([*lines, ""]), encoding="utf-8")
        packages = [f"{module.package(below)}@v{module.version}" for _, below in module.programs]
        with step(f"fetching {module.path} {module.version}"):
            self._go(folder, "get", *packages)
        return folder

    def _go(self, folder: Path, *arguments: str) -> str:
        env = {"CGO_ENABLED": "0", "GOFLAGS": "-trimpath -buildvcs=false", "GOWORK": "off"}
        try:
            return run(self.executable, *arguments, env=env, cwd=folder)
        except CommandFailedError as error:
            raise Unavailable(f"go {' '.join(arguments[:2])} {arguments[-1]}: {error.last_line}") from None


def programs_folder(cache: Cache, module: Module) -> Path:
    """Where a module's programs are once they are built."""
    return cache.folder(f"bin/{module.path.replace('/', '_')}-{module.version}")


def published_staging(module_file: str, version: str) -> list[str]:
    """Lines for a module file: what Kubernetes replaces by folders, replaced by what is published of the same release.

    Kubernetes 1.N.M publishes its parts as 0.N.M.
    """
    part_version = f"v0.{version.partition('.')[2]}"
    return [f"replace {path} => {path} {part_version}" for path in _STAGED.findall(module_file)]
