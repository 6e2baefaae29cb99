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


def test_the_kubernetes_example_names_volumes_that_are_there() -> None:
    folder = REPOSITORY / "examples/kubernetes"
    spec = load_job(folder / "job.yaml").spec
    assert spec.data.tokens is not None
    claim, loader = yaml.safe_load_all((folder / "corpus.yaml").read_text(encoding="utf-8"))
    (loaded,) = loader["spec"]["volumes"]
    assert loaded["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    for pool in spec.regions[0].pools:
        assert pool.pod_template is not None
        pod = pool.pod_template.spec
        (volume,), ((mount,),) = pod.volumes, [one.volume_mounts for one in pod.containers]
        assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        assert mount["name"] == volume["name"]
        assert spec.data.tokens.path.startswith(f"{mount['mountPath']}/")
    reader = yaml.safe_load((folder / "model.yaml").read_text(encoding="utf-8"))
    (volume,) = reader["spec"]["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == names.syncer(OTHER_NAMES["kubernetes"])


def test_the_readmes_manifest_is_good() -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    manifests = [part.split("```", 1)[0] for part in text.split("```yaml\n")[1:]]
    assert [parse_job(manifest).metadata.name for manifest in manifests] == ["mine"]
