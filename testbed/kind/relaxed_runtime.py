"""An OCI runtime for hosts whose root lacks CAP_SYS_RESOURCE: runc, without requests that such a host cannot meet.

A Docker engine asks for every capability where a container is privileged, for limits above its own, and for protection
from the kernel's out-of-memory killer. Each of these needs CAP_SYS_RESOURCE, and runc refuses all of the container for
one of them. This takes them out of the container's description (OCI runtime specification, config.json), then is runc.

The file is copied to where the engine starts it, so it imports nothing but the standard library.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any


def value_of(arguments: list[str], *names: str) -> str | None:
    """The value of a flag, written with a blank or with '='."""
    for index, argument in enumerate(arguments):
        for name in names:
            if argument == name and index + 1 < len(arguments):
                return arguments[index + 1]
            if argument.startswith(f"{name}="):
                return argument.partition("=")[2]
    return None


def relaxed(process: dict[str, Any]) -> dict[str, Any]:
    """A process of the specification, without what needs CAP_SYS_RESOURCE."""
    kept = {name: value for name, value in process.items() if name != "rlimits"}
    if "capabilities" in process:
        kept["capabilities"] = {
            kind: [name for name in names or [] if name != "CAP_SYS_RESOURCE"]
            for kind, names in process["capabilities"].items()
        }
    if (process.get("oomScoreAdj") or 0) < 0:
        kept["oomScoreAdj"] = 0
    return kept


def relax(arguments: list[str]) -> None:
    """Change the file that these arguments of runc name, if they start a process."""
    if "create" in arguments or "run" in arguments:
        path = Path(value_of(arguments, "--bundle", "-b") or ".") / "config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        config["process"] = relaxed(config["process"])
    elif "exec" in arguments and (file := value_of(arguments, "--process", "-p")):
        path = Path(file)
        config = relaxed(json.loads(path.read_text(encoding="utf-8")))
    else:
        return
    path.write_text(json.dumps(config), encoding="utf-8")


def main() -> None:
    """Stand in for runc."""
    arguments = sys.argv[1:]
    relax(arguments)
    runc = shutil.which("runc", path=f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/usr/bin")
    if runc is None:
        sys.exit("runc is not installed")
    os.execv(runc, ["runc", *arguments])


if __name__ == "__main__":
    main()
