"""The console blocks of the documentation are found and split; those that no test runs are among them."""

from pathlib import Path

import pytest

from tests.support.documented_commands import (
    NOT_RUN,
    READMES,
    blocks,
    commands_of_notes,
    statements,
    statements_to_run,
)

REPOSITORY = Path(__file__).resolve().parents[3]
INSTALLING = (*READMES, "examples/two-clusters/README.md")


def read(name: str) -> str:
    return (REPOSITORY / name).read_text(encoding="utf-8")


def test_a_reason_is_given_only_for_statements_that_are_there() -> None:
    told = [one for readme in READMES for block in blocks(read(readme)) for one in statements(block)]
    assert [start for start in NOT_RUN if not any(one.startswith(start) for one in told)] == []


@pytest.mark.parametrize("name", INSTALLING)
def test_each_readme_builds_pushes_and_installs_one_tag(name: str) -> None:
    tag, loop, install = statements_to_run(read(name))[:3]
    assert tag.startswith("REGISTRY=registry.example TAG=$(git describe ")
    assert "docker build --target $image --tag $REGISTRY/diloco-$image:$TAG ." in loop
    assert "docker push $REGISTRY/diloco-$image:$TAG" in loop
    assert install.startswith("helm upgrade --install diloco-operator charts/diloco-operator")
    for values in ("image.repository=$REGISTRY/diloco-operator,image.tag=$TAG", "trainer.image.tag=$TAG"):
        assert values in install


def test_a_block_is_split_into_whole_statements() -> None:
    parts = [
        "A=1 B=$(date)",
        "for x in 1 2; do  # twice\n  echo $x\ndone",
        "helm a \\\n  --b | \\\n  cat",
        "sed x |\n  cat",
    ]
    assert statements("\n\n".join(parts)) == parts


def test_blocks_are_those_for_a_shell_that_need_an_engine_or_a_cluster() -> None:
    document = "```sh\nmake x\n```\n\n```yaml\nhelm x\n```\nkubectl y\n```sh\nkubectl one\n```\n"
    assert blocks(document) == ["kubectl one\n"]


def test_commands_of_notes_are_found_with_their_input() -> None:
    notes = "Look:\n\n  kubectl get x\n\nkubectl apply -f - <<'JOB'\nkind: X\nJOB\n  helm test y\n"
    assert commands_of_notes(notes) == ["kubectl get x", "kubectl apply -f - <<'JOB'\nkind: X\nJOB", "helm test y"]
