"""A shell as a reader of the documentation has it: helm and kubectl on the PATH, the cluster's kubeconfig, a namespace.

With one difference: helm installs the images that were built here, as no registry has those of the documentation.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import yaml

from testbed.kind import chart
from testbed.kind.bed import Bed
from testbed.kind.project_images import REPOSITORY, Images

_HELM = """#!/bin/sh
case "$1" in
  install | upgrade) exec {helm} "$@" --set-string {values} ;;
  *) exec {helm} "$@" ;;
esac
"""


class ClusterShell:
    """Runs commands in the repository's root, against a namespace of the test bed's cluster."""

    def __init__(self, bed: Bed, images: Images, namespace: str, folder: Path) -> None:
        """`folder` is the shell's own."""
        config = yaml.safe_load(bed.cluster.kubeconfig.read_text(encoding="utf-8"))
        config["contexts"][0]["context"]["namespace"] = namespace
        kubeconfig, programs = folder / "kubeconfig", folder / "bin"
        kubeconfig.write_text(yaml.safe_dump(config), encoding="utf-8")
        kubeconfig.chmod(0o600)
        local = chart.local_values(images)
        # It takes precedence over every --set before it.
        values = ",".join(
            f"{prefix}.{part}={value}"
            for prefix, image in (("image", local["image"]), ("trainer.image", local["trainer"]["image"]))
            for part, value in image.items()
        )
        programs.mkdir()
        (programs / "helm").write_text(_HELM.format(helm=bed.tools.helm, values=values), encoding="utf-8")
        (programs / "helm").chmod(0o755)
        path = f"{programs}:{Path(sys.executable).parent}:{bed.path()}:{os.environ['PATH']}"
        self._environment = {**os.environ, "PATH": path, "KUBECONFIG": str(kubeconfig)}

    def run(self, command: str) -> str:
        """Run a command, which must succeed; returns its output."""
        process = self._start(command)
        said, _ = process.communicate(timeout=280)
        assert process.returncode == 0, f"{command}: {said}"
        return said

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
        return subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=REPOSITORY,
            env=self._environment,
            # Of its own group, so that what it has started is ended with it.
            start_new_session=True,
        )
