"""A shell as a reader of the documentation has it: helm, kubectl and diloco on the PATH, and a kubeconfig.

Each command sees the variables that commands before it have set.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from testbed.kind.bed import Bed
from testbed.kind.clusters import Cluster
from testbed.kind.commands import run
from testbed.kind.project_images import REPOSITORY
from tests.support.documented_commands import goes_on_for_ever

RUN_SECONDS = 580.0
"""Longest time of one command: both images are built and pushed in one."""


def checkout(folder: Path) -> Path:
    """A copy of the repository as it is now in which everything is committed, as a reader has it."""
    unwanted = shutil.ignore_patterns(".git", ".venv", "build", "runs", "*-output", ".*_cache", "__pycache__")
    shutil.copytree(REPOSITORY, folder, ignore=unwanted, symlinks=True)
    who = ("-c", "user.name=reader", "-c", "user.email=reader@localhost")
    for command in (("init", "--quiet"), ("add", "--all"), (*who, "commit", "--quiet", "--message", "all")):
        run("git", *command, cwd=folder)
    return folder


def of_namespace(cluster: Cluster, namespace: str) -> dict[str, Any]:
    """A kubeconfig of one context, with that namespace."""
    config = _read(cluster)
    config["contexts"][0]["context"]["namespace"] = namespace
    return config


def of_contexts(clusters: Mapping[str, Cluster]) -> dict[str, Any]:
    """A kubeconfig with a context for each cluster; the first is the current one."""
    read = {name: _read(cluster) for name, cluster in clusters.items()}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": next(iter(read)),
        "clusters": [{"name": name, "cluster": one["clusters"][0]["cluster"]} for name, one in read.items()],
        "users": [{"name": name, "user": one["users"][0]["user"]} for name, one in read.items()],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}} for name in read],
    }


def _read(cluster: Cluster) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(cluster.kubeconfig.read_text(encoding="utf-8"))
    return found


class ClusterShell:
    """Runs commands, against clusters of the test bed."""

    def __init__(self, bed: Bed, config: Mapping[str, Any], folder: Path, directory: Path = REPOSITORY) -> None:
        """`config` is its kubeconfig, `folder` its own, and `directory` where commands run."""
        self._directory = directory
        kubeconfig, self._variables = folder / "kubeconfig", folder / "variables"
        kubeconfig.write_text(yaml.safe_dump(dict(config)), encoding="utf-8")
        kubeconfig.chmod(0o600)
        path = f"{Path(sys.executable).parent}:{bed.path()}:{os.environ['PATH']}"
        self._environment = {**os.environ, "PATH": path, "KUBECONFIG": str(kubeconfig)}

    def run(self, command: str, look: Callable[[], object] | None = None) -> str:
        """Run a command, which must succeed, and ``look`` again and again meanwhile; returns its output."""
        process = self._start(f"set -ae\n{command}\nexport -p > {self._variables}")
        while look is not None and process.poll() is None:
            look()
        try:
            said, _ = process.communicate(timeout=RUN_SECONDS)
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            raise
        assert process.returncode == 0, f"{command}: {said}"
        return said

    def walk(self, statements: Iterable[str], job: str) -> None:
        """Run what a reader would type; what goes on for ever is followed until it shows the job."""
        for statement in statements:
            if goes_on_for_ever(statement):
                self.follow(statement, job)
            else:
                self.run(statement)

    def follow(self, command: str, word: str) -> None:
        """Wait until a command that never ends prints a word, then end it.

        Not with SIGINT, which a script's background jobs ignore.
        """
        process = self._start(command)
        try:
            assert process.stdout is not None
            said = ""
            while word not in said:
                line = process.stdout.readline()
                assert line, f"{command} ended: {said}"
                said += line
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.communicate(timeout=60)

    def _start(self, command: str) -> subprocess.Popen[str]:
        session = f". {self._variables}\n" if self._variables.exists() else ""
        return subprocess.Popen(
            ["/bin/sh", "-c", f"{session}{command}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self._directory,
            env=self._environment,
            # Of its own group, so that what it has started is ended with it.
            start_new_session=True,
        )
