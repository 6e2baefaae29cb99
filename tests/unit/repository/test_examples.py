from pathlib import Path

import pytest
import yaml

from diloco.spec import load_job, parse_job
from diloco_operator import names

REPOSITORY = Path(__file__).resolve().parents[3]
OTHER_NAMES = {"kubernetes": "corpus"}
"""Jobs that are not called what their folder is."""
EXAMPLES = sorted(path for path in (REPOSITORY / "examples").iterdir() if path.is_dir())
SEVERAL = {"finetune": ("lora", "sft")}
"""Jobs of a folder that has more than one; each is called what its file is."""


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_has_good_manifests_and_a_readme(example: Path) -> None:
    jobs = SEVERAL.get(example.name, ("job",))
    found = [load_job(example / f"{job}.yaml").metadata.name for job in jobs]
    assert found == list(SEVERAL.get(example.name, (OTHER_NAMES.get(example.name, example.name),)))
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
