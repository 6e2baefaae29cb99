"""How a process ends: with its code, after what others have asked for, without taking its modules apart."""

import os
import subprocess
import sys

_PROGRAM = """
from diloco.runtime.process.exits import end
import atexit, sys, threading, time

class Kept:
    def __del__(self):
        print("taken apart")

kept = Kept()

def work():
    time.sleep(0.2)
    print("thread done")

atexit.register(print, "asked for")
threading.Thread(target=work).start()
end({code})
"""


def _ended(program: str) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_threads_and_what_was_registered_come_before_the_end() -> None:
    ended = _ended(_PROGRAM.format(code=3))
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "thread done\nasked for\n", "")


def test_a_program_that_ends_in_another_way_is_taken_apart_as_ever() -> None:
    ended = _ended(_PROGRAM.format(code=0).replace("end(0)", "sys.exit(4)"))
    assert (ended.returncode, ended.stdout) == (4, "thread done\nasked for\ntaken apart\n")


def test_output_that_cannot_be_written_is_still_told() -> None:
    program = "from diloco.runtime.process.exits import end; import os; print('lost'); os.close(1); end(0)"
    ended = _ended(program)
    assert ended.returncode == 120  # the interpreter's own code for it
    assert "Bad file descriptor" in ended.stderr
