"""The helm and kubectl commands of the documentation, and which of them a test can run. Pure.

These are all commands in fenced blocks of language ``sh``: a test runs them unchanged, in the order of the document,
from the repository's root. A command that cannot be run is listed here with the reason; one that never ends is followed
until it shows the job.
"""

import re

READMES = ("README.md", "examples/kubernetes/README.md")
NOT_RUN = {
    "kubectl apply --filename examples/kubernetes/corpus.yaml": "the image in it is the reader's to fill in",
    "kubectl wait --for=condition=Ready pod/corpus-loader": "as above",
    "kubectl cp corpus.tokens": "as above",
    "kubectl delete pod corpus-loader": "as above",
    "kubectl wait --for=condition=Complete dlj/corpus": "the job takes days and wants accelerators",
    "kubectl apply --filename examples/kubernetes/model.yaml": "only a complete job has a model",
    "kubectl wait --for=condition=Ready pod/corpus-model": "as above",
    "kubectl cp corpus-model:": "as above",
    "kubectl delete pod corpus-model": "as above",
}
"""Beginnings of commands of the READMEs, and why no test runs them on a cluster."""
_ENDLESS = (" --watch", "kubectl diloco top")
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_OF_CLUSTERS = re.compile(r"(helm|kubectl) ")


def commands(document: str) -> list[str]:
    """The commands of a Markdown document, one per line; continued lines are joined."""
    text = "\n".join(_BLOCK.findall(document)).replace("\\\n", " ")
    return [" ".join(line.split()) for line in text.splitlines() if _OF_CLUSTERS.match(line)]


def commands_to_run(document: str) -> list[str]:
    """Those that a test can run."""
    return [command for command in commands(document) if not command.startswith(tuple(NOT_RUN))]


def commands_of_notes(notes: str) -> list[str]:
    """The commands of a chart's NOTES: single commands are indented, one has its input with it."""
    found = []
    lines = iter(notes.splitlines())
    for line in lines:
        if not _OF_CLUSTERS.match(line.strip()):
            continue
        whole = [line.strip()]
        _, has_input, end = line.partition("<<'")
        while has_input and whole[-1] != end.rstrip("'"):
            whole.append(next(lines))
        found.append("\n".join(whole))
    return found


def goes_on_for_ever(command: str) -> bool:
    """Whether it ends only when it is stopped."""
    return any(words in command for words in _ENDLESS)


def sections(document: str) -> dict[str, str]:
    """The whole text of the fenced blocks of language ``sh`` below each heading of the second level, in their order."""
    parts = (part.partition("\n") for part in re.split(r"^## ", document, flags=re.MULTILINE)[1:])
    return {heading: "".join(_BLOCK.findall(text)) for heading, _, text in parts}
