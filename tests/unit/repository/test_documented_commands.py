"""The console blocks of the documentation are found and split; those that no test runs are among them."""

from pathlib import Path

import pytest

from tests.support.documented_commands import NOT_RUN, READMES, blocks, statements, statements_to_run

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
