"""Every example is a good manifest and is explained; so is the one in the README."""

from pathlib import Path

import pytest

from diloco.spec import load_job, parse_job

REPOSITORY = Path(__file__).resolve().parents[3]
EXAMPLES = sorted(path for path in (REPOSITORY / "examples").iterdir() if path.is_dir())


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_a_good_manifest_with_a_readme(example: Path) -> None:
    assert load_job(example / "job.yaml").metadata.name == example.name
    assert (example / "README.md").is_file()


def test_the_demo_has_two_regions_and_four_learners() -> None:
    spec = load_job(REPOSITORY / "examples/two-regions/job.yaml").spec
    assert len(spec.regions) == 2
    assert len(spec.learner_ids) == 4


def test_the_readmes_manifest_is_good() -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    manifests = [part.split("```", 1)[0] for part in text.split("```yaml\n")[1:]]
    assert [parse_job(manifest).metadata.name for manifest in manifests] == ["mine"]
