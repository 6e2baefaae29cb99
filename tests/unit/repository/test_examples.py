"""Every example is a good manifest and is explained; so is the one in the README."""

from pathlib import Path

import pytest
import yaml

from diloco.spec import load_job, parse_job
from diloco_operator import names

REPOSITORY = Path(__file__).resolve().parents[3]
OTHER_NAMES = {"kubernetes": "corpus"}
"""Jobs that are not called what their folder is."""
EXAMPLES = sorted(path for path in (REPOSITORY / "examples").iterdir() if path.is_dir())


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_a_good_manifest_with_a_readme(example: Path) -> None:
    assert load_job(example / "job.yaml").metadata.name == OTHER_NAMES.get(example.name, example.name)
    assert (example / "README.md").is_file()


def test_the_demo_has_two_regions_and_four_learners() -> None:
    spec = load_job(REPOSITORY / "examples/two-regions/job.yaml").spec
    assert len(spec.regions) == 2
    assert len(spec.learner_ids) == 4


def test_the_kubernetes_example_reads_the_volume_that_its_readme_fills() -> None:
    folder = REPOSITORY / "examples/kubernetes"
    spec = load_job(folder / "job.yaml").spec
    assert spec.data.tokens is not None
    claim, loader = yaml.safe_load_all((folder / "corpus.yaml").read_text(encoding="utf-8"))
    (loaded,) = loader["spec"]["volumes"]
    assert loaded["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    for pool in spec.regions[0].pools:
        (volume,), (mount,) = pool.volumes, pool.volume_mounts
        assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        assert mount["name"] == volume["name"]
        assert spec.data.tokens.path.startswith(f"{mount['mountPath']}/")


def test_the_kubernetes_example_fetches_the_model_from_the_operators_claim() -> None:
    reader = yaml.safe_load((REPOSITORY / "examples/kubernetes/model.yaml").read_text(encoding="utf-8"))
    (volume,) = reader["spec"]["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == names.syncer(OTHER_NAMES["kubernetes"])


def test_the_readmes_manifest_is_good() -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    manifests = [part.split("```", 1)[0] for part in text.split("```yaml\n")[1:]]
    assert [parse_job(manifest).metadata.name for manifest in manifests] == ["mine"]
