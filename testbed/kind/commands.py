"""Runs other programs: the one place for how they are called and how a failure is reported."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

TEST_SESSION = "DILOCO_TEST_SESSION"
"""What marks the processes of a test session, which must end with it. Engines and clusters may outlive one."""

_LAST_LINES = 15


class Unavailable(Exception):  # noqa: N818 - a state of this machine, not an error
    """Why there can be no clusters on this machine, in one line. Tests that need one are skipped with it."""


class CommandFailedError(Exception):
    """A program ended with another status than 0; the message has the end of its output."""

    def __init__(self, command: tuple[str, ...], status: int, output: str) -> None:
        self.output = output
        end = "\n".join(output.strip().splitlines()[-_LAST_LINES:])
        super().__init__(f"{' '.join(command[:8])}: status {status}\n{end}".rstrip())

    @property
    def last_line(self) -> str:
        """The last line of output, which usually has the cause."""
        lines = self.output.strip().splitlines()
        return lines[-1].strip() if lines else "no output"


def run(
    *command: str | Path,
    stdin: str | bytes | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_seconds: float | None = None,
) -> str:
    """Run a program; returns what it writes to its standard output.

    Raises:
        CommandFailedError: It failed, could not be started, or took longer than ``timeout_seconds``.
    """
    words = tuple(str(word) for word in command)
    data = stdin.encode() if isinstance(stdin, str) else stdin
    try:
        done = subprocess.run(
            words,
            input=data,
            # A program that asks a question must not wait for an answer.
            stdin=subprocess.DEVNULL if data is None else None,
            env=environment(env or {}),
            cwd=cwd,
            check=False,
            capture_output=True,
            timeout=timeout_seconds,
        )
    except subprocess.TimeoutExpired as error:
        raise CommandFailedError(words, -1, f"no end after {error.timeout} s") from None
    except OSError as error:
        raise CommandFailedError(words, -1, str(error)) from None
    output = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        raise CommandFailedError(words, done.returncode, output + done.stderr.decode(errors="replace"))
    return output


def pipe(source: tuple[str | Path, ...], sink: tuple[str | Path, ...]) -> None:
    """Give what one program writes to another one, without holding it in memory.

    Raises:
        CommandFailedError: One of the two failed.
    """
    words = [tuple(str(word) for word in command) for command in (source, sink)]
    with (
        subprocess.Popen(words[0], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment({})) as first,
        subprocess.Popen(
            words[1], stdin=first.stdout, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment({})
        ) as second,
    ):
        assert first.stdout is not None
        assert first.stderr is not None
        first.stdout.close()
        output, _ = second.communicate()
        complaint = first.stderr.read()
        statuses = (first.wait(), second.returncode)
    for command, status, said in zip(words, statuses, (complaint, output), strict=True):
        if status != 0:
            raise CommandFailedError(command, status, said.decode(errors="replace"))


def environment(changes: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with ``changes``, and without the mark of a test session."""
    kept = {name: value for name, value in os.environ.items() if name != TEST_SESSION}
    return kept | dict(changes)


def succeeds(*command: str | Path, timeout_seconds: float | None = None) -> bool:
    """Whether the program is there and ends well."""
    try:
        run(*command, timeout_seconds=timeout_seconds)
    except CommandFailedError:
        return False
    return True


def on_path(name: str) -> Path | None:
    """Where the user's program of this name is."""
    found = shutil.which(name)
    return Path(found) if found else None


@contextmanager
def step(what: str) -> Iterator[None]:
    """Report a step that takes long, and how long it took."""
    started = time.monotonic()
    sys.stderr.write(f"kind: {what} ...\n")
    sys.stderr.flush()
    yield
    sys.stderr.write(f"kind: {what}: {time.monotonic() - started:.0f} s\n")
    sys.stderr.flush()
