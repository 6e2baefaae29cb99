"""The console blocks of the documentation, as statements for a shell, and which of them a test cannot run.

A block is fenced and of language ``sh``. A test runs its statements word for word, in the order of the document, in one
session of a shell in the repository's root. A statement that cannot be run is listed here with the reason; one that
never ends is followed until it shows the job.
"""

import os
import re
import subprocess

import pytest

READMES = {
    "README.md": "two-regions",
    "examples/kubernetes/README.md": "corpus",
    "docs/tutorials/kubernetes.md": "two-regions",
}
"""Documents that install the operator on a cluster and apply a job, whose name it is."""
walk = pytest.mark.skipif(
    os.environ.get("DILOCO_WALKS") == "0", reason="walks through a long document on clusters: make test-e2e"
)
"""Of what takes several minutes on a cluster beside README.md, which says the same of building and installing."""
NOT_RUN = {
    'sed "s|TRAINER-IMAGE|$REGISTRY/diloco-trainer:$TAG|" examples/kubernetes/corpus.yaml': "no shared volume on kind",
    "kubectl wait --for=condition=Ready pod/corpus-loader": "as above",
    "kubectl cp corpus.tokens": "as above",
    "kubectl delete pod corpus-loader": "as above",
    "kubectl wait --for=condition=Complete dlj/corpus": "the job takes days and wants accelerators",
    'sed "s|TRAINER-IMAGE|$REGISTRY/diloco-trainer:$TAG|" examples/kubernetes/model.yaml': "only a complete job has it",
    "kubectl wait --for=condition=Ready pod/corpus-model": "as above",
    "kubectl cp corpus-model:": "as above",
    "kubectl delete pod corpus-model": "as above",
}
"""Beginnings of statements of these documents, and why no test runs them."""
_ENDLESS = (" --watch", "kubectl diloco top")
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_ON_A_CLUSTER = re.compile(r"^\s*(docker|helm|kubectl|sed .*\| kubectl|diloco tokens) ", re.MULTILINE)
_PROGRAMS = re.compile(r"(helm|kubectl) ")


def blocks(document: str) -> list[str]:
    """The console blocks of a Markdown document that need an engine or a cluster."""
    return [block for block in _BLOCK.findall(document) if _ON_A_CLUSTER.search(block)]


def statements(block: str) -> list[str]:
    """The statements of a console block, each whole: a loop is one, and so is a command on several lines."""
    found: list[str] = []
    lines = ""
    for line in block.splitlines(keepends=True):
        lines += line
        if not line.endswith("\\\n") and _is_whole(lines):
            found += [lines.strip()] if lines.strip() else []
            lines = ""
    return [*found, lines.strip()] if lines.strip() else found


def statements_to_run(document: str) -> list[str]:
    """Those that a test can run."""
    every = [one for block in blocks(document) for one in statements(block)]
    return [one for one in every if not one.startswith(tuple(NOT_RUN))]


def local_script(document: str) -> str:
    """All its console blocks as one script for this machine, without the installation."""
    return "".join(_BLOCK.findall(document)).replace("make install\n", "")


def files(document: str) -> dict[str, str]:
    """The files that a reader is to save: fenced blocks with a title."""
    return dict(_FILE.findall(document))


def commands_of_notes(notes: str) -> list[str]:
    """The commands of a chart's NOTES: single commands are indented, one has its input with it."""
    found = []
    lines = iter(notes.splitlines())
    for line in lines:
        if not _PROGRAMS.match(line.strip()):
            continue
        whole = [line.strip()]
        _, has_input, end = line.partition("<<'")
        while has_input and whole[-1] != end.rstrip("'"):
            whole.append(next(lines))
        found.append("\n".join(whole))
    return found


def goes_on_for_ever(statement: str) -> bool:
    """Whether it ends only when it is stopped."""
    return any(words in statement for words in _ENDLESS)


def sections(document: str) -> dict[str, str]:
    """The whole text of the fenced blocks of language ``sh`` below each heading of the second level, in their order."""
    parts = (part.partition("\n") for part in re.split(r"^## ", document, flags=re.MULTILINE)[1:])
    return {heading: "".join(_BLOCK.findall(text)) for heading, _, text in parts}


def _is_whole(lines: str) -> bool:
    return subprocess.run(["/bin/sh", "-n", "-c", lines], check=False, capture_output=True).returncode == 0
