"""Finds out what the tests do not see: changes one place of the code at a time and runs the unit tests on it.

A mutant on which no test fails shows a line that no test checks, or one that does not matter. Those that do not matter
stand in ``scripts/equivalent_mutants.toml``, each with its reason. Nothing is written to the tree: every mutant lives
in a process of its own. It is forked from one that has loaded the libraries and all modules that do not import the
changed file.

The report has every test that fails on a mutant. A mutant inside a function runs only the tests that enter it.
``--needless`` reads the report and lists tests without which the others still kill each mutant. Such a test may check
what no mutant reaches, as an error's text: judge before you delete it.

    python scripts/mutate.py --sample 100
    python scripts/mutate.py --only trainer/diloco/core/engine/rounds/pace.py
    python scripts/mutate.py --only trainer/diloco/core/engine/rounds/pace.py --tests tests/unit/core/engine/rounds
    python scripts/mutate.py --needless
"""

import argparse
import ast
import gc
import importlib
import importlib.machinery
import itertools
import json
import multiprocessing
import os
import random
import resource
import signal
import sys
import threading
import time
import tomllib
import traceback
from collections import Counter
from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import grimp
import pytest

ROOT = Path(__file__).parents[1]
EQUIVALENT = ROOT / "scripts" / "equivalent_mutants.toml"
REPORT = ROOT / "build" / "mutants.json"
TARGETS = {
    "trainer/diloco/core": ("tests/unit/core", "tests/property"),
    "trainer/diloco/syncer": ("tests/unit/syncer",),
    "trainer/diloco/learner": ("tests/unit/learner",),
    "operator/diloco_operator/decide": ("tests/unit/operator/decide",),
}
"""What is changed, and which tests must see it."""

MEMORY_BYTES = 3 << 30
"""Of one run of the tests."""

_ALL = ""
"""Stands for every test: what is entered while tests are collected."""

_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one line."""

    file: str
    line: int
    before: str
    """The line as it is, without its indentation."""
    after: str
    source: str
    """The whole changed file."""

    @property
    def key(self) -> tuple[str, str, str]:
        """By which it is found again when lines move."""
        return self.file, self.before, self.after


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a mutant."""

    fate: Literal["killed", "survived", "too slow"]
    killers: tuple[str, ...] = ()
    """Tests that failed, and files that could not be collected."""
    ran: tuple[str, ...] = ()
    entered: dict[int, set[str]] = field(default_factory=dict)
    """Without a mutant: tests that enter a function of the file, by the function's first line."""


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Every mutant of a file, in the order of its lines."""
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    seen: set[str] = set()
    for node, new in sorted(_changes(ast.parse(text)), key=lambda change: (change[0].lineno, change[0].col_offset)):
        if node.lineno != node.end_lineno:
            continue
        encoded = lines[node.lineno - 1].encode()
        changed = (encoded[: node.col_offset] + new.encode() + encoded[node.end_col_offset :]).decode()
        source = "".join([*lines[: node.lineno - 1], changed, *lines[node.lineno :]])
        before = lines[node.lineno - 1].strip()
        if source not in seen and changed.strip() != before:
            seen.add(source)
            yield Mutant(str(path.relative_to(ROOT)), node.lineno, before, changed.strip(), source)


def _changes(tree: ast.Module) -> Iterator[tuple[Any, str]]:
    """(node, what takes its place) of everything that is decided or computed; not of texts and types."""
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert | ast.Import | ast.ImportFrom):
            continue
        if isinstance(node, ast.keyword) and node.arg == "strict":  # of zip: a check of our own
            continue
        stack += [child for name, child in _children(node) if name not in ("annotation", "returns", "decorator_list")]
        yield from ((node, new) for new in _replacements(node))


def _children(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield name, child


def _replacements(node: ast.AST) -> Iterator[str]:  # noqa: C901  # a table of nodes
    match node:
        case ast.Compare(left, [op], [right]) if type(op) in _SWAPS:
            yield _text(ast.Compare(left, [_swapped(op)], [right]))
        case ast.BinOp(left, op, right) if type(op) in _SWAPS:
            yield _text(ast.BinOp(left, _swapped(op), right))
        case ast.BoolOp(op, values):
            yield _text(ast.BoolOp(_swapped(op), values))
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield _text(operand)
        case ast.Constant(value) if isinstance(value, bool):
            yield str(not value)
        case ast.Constant(value) if isinstance(value, int | float):
            yield repr(value + 1 if value + 1 != value else 2 * value)  # 1e30 + 1 is 1e30
        case ast.Call(ast.Name(name), arguments, keywords) if name in _CALLS:
            yield _text(ast.Call(ast.Name(_CALLS[name]), arguments, keywords))
        case ast.IfExp(test, body, orelse):
            yield _text(ast.IfExp(test, orelse, body))
        case ast.Expr(ast.Call(ast.Attribute(ast.Name("_log")))):  # what is said, not what is done
            pass
        case ast.Expr(ast.Call()) | ast.AugAssign() | ast.Delete([ast.Attribute() | ast.Subscript()]):
            yield "pass"
        case ast.Assign([ast.Attribute() | ast.Subscript()]):
            yield "pass"
        case _:
            pass


def _swapped(op: ast.AST) -> Any:
    return _SWAPS[type(op)]()


def _text(node: ast.AST) -> str:
    return f"({ast.unparse(ast.fix_missing_locations(node))})"


def tests_for(file: str, chosen_places: Sequence[str] | None) -> list[str]:
    """The test files to run on mutants of a file; None: all that must see them."""
    for target, places in TARGETS.items():
        if file.startswith(f"{target}/"):
            return [str(path) for place in chosen_places or places for path in _test_files(ROOT / place)]
    raise SystemExit(f"{file}: is none of the targets {', '.join(TARGETS)}")


def _test_files(place: Path) -> list[Path]:
    return sorted(place.rglob("test_*.py")) if place.is_dir() else [place]


def function_at(source: str, line: int) -> int:
    """The first line of the innermost function whose body has ``line``, as in its code object; 0: none has."""
    found = 0
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.body[0].lineno <= line <= _end(node):
            found = max(found, min(one.lineno for one in (*node.decorator_list, node)))
    return found


def _end(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return node.end_lineno or node.lineno


def outcomes_of(file: str, todo: Sequence[Mutant], tests: Sequence[str], until: float) -> Iterator[Outcome]:
    """What became of each mutant of a file, as long as there is time.

    Raises: SystemExit when the tests fail without a mutant.
    """
    reading, writing = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _load_what_does_not_import(file)
            began = time.monotonic()
            writing.send(whole := run(file, None, tests, 1800.0))
            limit_seconds = 10.0 + 4 * (time.monotonic() - began)
            plain = (ROOT / file).read_text()
            for mutant in todo:
                if time.monotonic() > until:
                    break
                function = function_at(plain, mutant.line)
                entering = whole.entered.get(function, ()) if function else {_ALL}
                those = tests if _ALL in entering else sorted(entering)
                writing.send(run(file, mutant.source, those, limit_seconds) if those else Outcome("survived"))
            writing.send(None)
        except BaseException:  # noqa: BLE001  # this process must not return into its parent's code
            traceback.print_exc()
        finally:
            os._exit(1)
    writing.close()
    try:
        whole = reading.recv()
        if whole.fate != "survived":
            raise SystemExit(f"{file}: its tests fail without a mutant: {', '.join(whole.killers) or whole.fate}")
        while outcome := reading.recv():
            yield outcome
    finally:
        reading.close()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _load_what_does_not_import(file: str) -> None:
    graph = grimp.build_graph("diloco", "diloco_operator", cache_dir=None)
    changed = file.partition("/")[2].removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    for module in sorted(graph.modules - _importing(graph, changed)):
        if not module.endswith(".__main__"):
            importlib.import_module(module)
    if changed in sys.modules:
        raise SystemExit(f"{file}: a module that does not import it loads it")
    gc.freeze()  # no child has to look through what all of them share


def _importing(graph: grimp.ImportGraph, changed: str) -> set[str]:
    """The changed module and all that load it. Whatever imports a module imports its packages first."""
    loads = {
        module: {
            loaded
            for one in (module, *graph.find_modules_directly_imported_by(module))
            for loaded in _with_packages(one)
        }
        for module in graph.modules
    }
    found = {changed}
    while more := {module for module, loaded in loads.items() if module not in found and loaded & found}:
        found |= more
    return found


def _with_packages(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts) + 1)]


def run(file: str, source: str | None, tests: Sequence[str], limit_seconds: float) -> Outcome:
    """What became of a mutant: killed, survived, or too slow, which counts as killed.

    ``source``: the changed file; None: the file as it is, and which tests enter its functions.
    """
    reading, writing = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        _run_here(ROOT / file, source, tests, writing)
    writing.close()
    try:
        if not reading.poll(limit_seconds):
            return Outcome("too slow")
        outcome: Outcome = reading.recv()
    except EOFError:
        return Outcome("killed")  # it ended the process
    else:
        return outcome
    finally:
        reading.close()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


class _Watch:
    """Notes the tests that fail and, by functions of a file, the tests that enter them."""

    def __init__(self, path: Path | None) -> None:
        self.failed: dict[str, None] = {}
        self.ran: list[str] = []
        self.entered: dict[int, set[str]] = {}
        self._path, self._test = str(path), _ALL
        if path is not None:
            threading.settrace(self._call)
            sys.settrace(self._call)

    def _call(self, frame: Any, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename == self._path:
            self.entered.setdefault(frame.f_code.co_firstlineno, set()).add(self._test)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._test = nodeid
        self.ran.append(nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, object, object]:
        """A fixture that outlives a test enters functions for others too."""
        test = self._test
        if fixturedef.scope != "function":
            self._test = _ALL if fixturedef.scope in ("package", "session") else test.partition("::")[0]
        try:
            return (yield)
        finally:
            self._test = test

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed[report.nodeid] = None

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.failed[report.nodeid] = None


def _run_here(path: Path, source: str | None, tests: Sequence[str], writing: Any) -> None:
    """In a child: take the mutant for the file, run the tests, say what became of them, and end."""
    try:
        # A mutant may ask for memory without an end.
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        if source is not None:
            _replace(path, source)
        watch = _Watch(path if source is None else None)
        options = ["-q", "-n0", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--no-header", "--tb=no"]
        options += ["--assert=plain"]  # pytest cannot rewrite what is loaded already
        code = pytest.main([*options, *tests], plugins=[watch])
        writing.send(
            Outcome("survived" if code == 0 else "killed", tuple(watch.failed), tuple(watch.ran), watch.entered)
        )
    finally:
        os._exit(1)


def _replace(path: Path, source: str) -> None:
    loader: Any = importlib.machinery.SourceFileLoader
    plain = loader.get_code

    def get_code(self: Any, name: str) -> Any:
        if Path(self.path) == path:
            return compile(source, str(path), "exec")
        return plain(self, name)

    loader.get_code = get_code


def equivalents() -> dict[tuple[str, str, str], str]:
    """Mutants that change nothing observable, with the reason."""
    plain = tomllib.loads(EQUIVALENT.read_text()) if EQUIVALENT.exists() else {}
    return {(one["file"], one["before"], one["after"]): one["reason"] for one in plain.get("mutant", [])}


def chosen(arguments: argparse.Namespace) -> list[Mutant]:
    """The mutants to try."""
    files = [path for target in TARGETS for path in sorted((ROOT / target).rglob("*.py"))]
    if arguments.only:
        wanted = {(ROOT / name).resolve() for name in arguments.only}
        files = [path for path in files if path in wanted or wanted & set(path.parents)]
    found = [mutant for path in files for mutant in mutants_of(path)]
    known = equivalents()
    left = [mutant for mutant in found if mutant.key not in known]
    print(f"{len(found)} mutants in {len(files)} files, {len(found) - len(left)} of them equivalent", flush=True)
    if arguments.sample and arguments.sample < len(left):
        left = random.Random(arguments.seed).sample(left, arguments.sample)  # noqa: S311  # the same ones again
    return sorted(left, key=lambda mutant: (mutant.file, mutant.line, mutant.after))


def main() -> int:
    """Try mutants, tell which survive, and say whether enough were killed."""
    parser = argparse.ArgumentParser(description="Changes one place of the code at a time and runs the tests on it.")
    parser.add_argument("--sample", type=int, metavar="N", help="try N of them (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="which N (default: 0)")
    parser.add_argument("--only", action="append", metavar="PATH", help="only mutants of this file or folder")
    parser.add_argument("--minutes", type=float, default=180.0, help="stop after so many minutes (default: 180)")
    parser.add_argument("--least", type=float, default=0.95, help="share that must be killed (default: 0.95)")
    parser.add_argument(
        "--tests",
        action="append",
        metavar="PATH",
        help="run this test file or folder only, for a quick look (default: all tests that must see the mutant)",
    )
    parser.add_argument(
        "--needless",
        action="store_true",
        help="list tests that ran for the report and can go together: the others kill the same mutants",
    )
    arguments = parser.parse_args()
    if arguments.needless:
        return _print_needless()
    os.chdir(ROOT)
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no child is left behind
    sys.path[:0] = [str(ROOT / "trainer"), str(ROOT / "operator"), str(ROOT)]
    for library in ("torch", "pytest", "pydantic", "grpc", "safetensors.torch", "xxhash", "hypothesis"):
        importlib.import_module(library)  # for all children at once
    todo, until = chosen(arguments), time.monotonic() + 60 * arguments.minutes
    outcomes: list[tuple[Mutant, Outcome]] = []
    for file, group in itertools.groupby(todo, key=lambda mutant: mutant.file):
        if time.monotonic() > until:
            break
        mutants = list(group)
        found = outcomes_of(file, mutants, tests_for(file, arguments.tests), until)
        for mutant, outcome in zip(mutants, found, strict=False):
            outcomes.append((mutant, outcome))
            if outcome.fate == "survived":
                print(f"survived  {file}:{mutant.line}: {mutant.before}  ->  {mutant.after}", flush=True)
    return _report(outcomes, len(todo), arguments.least)


def _report(outcomes: list[tuple[Mutant, Outcome]], planned: int, least: float) -> int:
    killed = sum(outcome.fate != "survived" for _, outcome in outcomes)
    share = killed / len(outcomes) if outcomes else 1.0
    REPORT.parent.mkdir(exist_ok=True)
    rows = [
        {
            "file": mutant.file,
            "line": mutant.line,
            "before": mutant.before,
            "after": mutant.after,
            "fate": outcome.fate,
            "killers": outcome.killers,
        }
        for mutant, outcome in outcomes
    ]
    tests = sorted({test for _, outcome in outcomes for test in outcome.ran})
    counts = {"killed": killed, "tried": len(outcomes), "planned": planned}
    REPORT.write_text(json.dumps({**counts, "mutants": rows, "tests": tests}, indent=1))
    print(
        f"{killed} of {len(outcomes)} killed ({share:.1%}); {planned - len(outcomes)} not tried; "
        f"{REPORT.relative_to(ROOT)}"
    )
    return 0 if share >= least else 1


def needless(tests: Collection[str], killers: Sequence[Collection[str]]) -> list[str]:
    """Tests that can go together: each mutant keeps a test that kills it. Those that kill the fewest come first."""
    mutants = [set(those) for those in killers if those]
    kills = Counter(test for those in mutants for test in those)
    found = []
    for test in sorted(tests, key=lambda test: (kills[test], test)):
        if all(len(those) > 1 for those in mutants if test in those):
            found.append(test)
            for those in mutants:
                those.discard(test)
    return found


def _print_needless() -> int:
    report = json.loads(REPORT.read_text())
    for test in needless(report["tests"], [mutant["killers"] for mutant in report["mutants"]]):
        print(test)
    return 0


if __name__ == "__main__":
    sys.exit(main())
