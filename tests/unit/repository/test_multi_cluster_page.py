"""docs/how-to/multi-cluster.md: its commands and manifests are those of this version."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from diloco.cli import main
from diloco.spec import JobSpec, parse_job
from diloco.spec.names.syncer_name import syncer_name
from diloco_operator import names
from diloco_operator.clusters.rules import RULES
from diloco_operator.commands import app
from tests.support.small_manifest import SMALL_MANIFEST

REPOSITORY = Path(__file__).resolve().parents[3]
PAGE = (REPOSITORY / "docs/how-to/multi-cluster.md").read_text(encoding="utf-8")
JOB, NAMESPACE = "spread", "training"
"""The job of the page's examples."""


def blocks(language: str, begins: str = "") -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return [block for block in found if block.startswith(begins)]


def commands() -> list[list[str]]:
    lines = "\n".join(blocks("sh")).splitlines()
    return [line.partition(" # ")[0].split() for line in lines if line.startswith("diloco cluster ")]


def flags(command: str) -> set[str]:
    group: Any = typer.main.get_command(app)
    return {flag for parameter in group.commands[command].params for flag in parameter.opts}


def page_job(**parts: Any) -> str:
    """The page's job with other parts."""
    job = yaml.safe_load(SMALL_MANIFEST)
    (shown,) = blocks("yaml", "spec:")
    job["spec"] |= {**yaml.safe_load(shown)["spec"], **parts}
    return yaml.safe_dump(job)


def spec_with(**parts: Any) -> JobSpec:
    return parse_job(page_job(**parts), "page").spec


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_each_command_has_the_flags_that_the_page_uses(words: list[str]) -> None:
    used = {word for word in words[3:] if word.startswith("-")}
    assert used <= flags(words[2])


def test_the_page_uses_every_command_of_the_group() -> None:
    group: Any = typer.main.get_command(app)
    assert {words[2] for words in commands()} == set(group.commands)


def test_the_job_is_a_valid_manifest_with_any_of_the_pages_parts() -> None:
    assert [region.cluster is not None for region in spec_with().regions] == [False, True]
    shown = [spec_with(**yaml.safe_load(block)).syncer.expose for block in blocks("yaml", "syncer:")]
    assert {one.type for one in shown} == {"NodePort", "LoadBalancer", "External"}
    (regions,) = blocks("yaml", "regions:")
    assert spec_with(**yaml.safe_load(regions)).regions[0].cluster is not None


def test_what_leads_to_the_syncer_uses_its_service_and_its_name() -> None:
    service, name = names.exposed_syncer(JOB), syncer_name(JOB, NAMESPACE)
    route = next(one for block in blocks("yaml") for one in yaml.safe_load_all(block) if one.get("kind") == "TLSRoute")
    assert route["spec"]["hostnames"] == [name]
    assert route["spec"]["rules"] == [{"backendRefs": [{"name": service, "port": 29400}]}]
    (proxy,) = blocks("text", "defaults")
    assert f"req.ssl_sni -i {name} " in proxy
    assert f"{service}.{NAMESPACE}.svc:29400" in proxy
    (tunnel,) = blocks("sh", "ssh ")
    assert f"-L0.0.0.0:29400:{service}.{NAMESPACE}.svc:29400" in tunnel


def test_every_right_that_home_gets_is_named() -> None:
    (table,) = re.findall(r"\| resource \| rights .*?\n\n", PAGE, re.DOTALL)
    assert [rule.resource for rule in RULES if f"`{rule.resource}`" not in table] == []


def test_what_a_cluster_will_get_is_rendered_as_the_page_says(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(page_job(), encoding="utf-8")
    (line,) = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("diloco render ")]
    words = [str(path) if word == "job.yaml" else word for word in line.partition(" |")[0].split()[1:]]
    done = CliRunner().invoke(main.app, words)
    assert done.exit_code == 0, done.output
