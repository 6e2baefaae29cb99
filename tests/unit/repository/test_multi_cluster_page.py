"""docs/multi-cluster.md: its commands and manifests are those of this version, and it leaves out no state."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from diloco.cli.cluster_commands import app
from diloco.spec import JobSpec, parse_job
from diloco.spec.syncer_name import syncer_name
from diloco_operator import names
from diloco_operator.clusters.rules import RULES
from diloco_operator.clusters.state import ClusterState
from diloco_operator.decide.reasons import Reason
from tests.support.made_objects import made, with_pool
from tests.support.small_manifest import SMALL_MANIFEST

REPOSITORY = Path(__file__).resolve().parents[3]
PAGE = (REPOSITORY / "docs" / "multi-cluster.md").read_text(encoding="utf-8")
OPERATIONS = (REPOSITORY / "docs" / "operations.md").read_text(encoding="utf-8")
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


def spec_with(**parts: Any) -> JobSpec:
    """The page's job with other parts."""
    job = yaml.safe_load(SMALL_MANIFEST)
    (shown,) = blocks("yaml", "spec:")
    job["spec"] |= {**yaml.safe_load(shown)["spec"], **parts}
    return parse_job(yaml.safe_dump(job), "page").spec


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_each_command_has_the_flags_that_the_page_uses(words: list[str]) -> None:
    used = {word for word in words[3:] if word.startswith("-")}
    assert used <= flags(words[2])


def test_the_page_uses_every_command_of_the_group() -> None:
    group: Any = typer.main.get_command(app)
    assert {words[2] for words in commands()} == set(group.commands)


def test_the_job_is_a_valid_manifest() -> None:
    assert [region.cluster is not None for region in spec_with().regions] == [False, True]


def test_each_way_to_the_syncer_is_shown_and_valid() -> None:
    shown = [spec_with(**yaml.safe_load(block)).syncer.expose for block in blocks("yaml", "syncer:")]
    assert {one.type for one in shown} == {"NodePort", "LoadBalancer", "External"}


def test_what_leads_to_the_syncer_uses_its_service_and_its_name() -> None:
    service, name = names.exposed_syncer(JOB), syncer_name(JOB, NAMESPACE)
    route = next(one for block in blocks("yaml") for one in yaml.safe_load_all(block) if one.get("kind") == "TLSRoute")
    assert route["spec"]["hostnames"] == [name]
    assert route["spec"]["rules"] == [{"backendRefs": [{"name": service, "port": 29400}]}]
    (proxy,) = blocks("text", "defaults")
    assert f"req.ssl_sni -i {name} " in proxy
    assert f"{service}.{NAMESPACE}.svc:29400" in proxy
    (tunnel,) = [block for block in blocks("yaml") if "kind: Deployment" in block]
    assert f"-L0.0.0.0:29400:{service}.{NAMESPACE}.svc:29400" in tunnel


def test_the_terms_of_a_link_are_valid() -> None:
    (shown,) = blocks("yaml", "regions:")
    assert spec_with(**yaml.safe_load(shown)).regions[0].cluster is not None


def test_the_sizes_of_tcps_buffers_are_accepted() -> None:
    (shown,) = blocks("yaml", "podTemplate:")
    assert made(with_pool(yaml.safe_load(shown)))


def test_every_right_that_home_gets_is_named() -> None:
    (table,) = re.findall(r"\| resource \| rights .*?\n\n", PAGE, re.DOTALL)
    assert [rule.resource for rule in RULES if f"`{rule.resource}`" not in table] == []


@pytest.mark.parametrize(
    "reason",
    [
        *(Reason(state) for state in ClusterState if state is not ClusterState.READY),
        *(Reason.DUPLICATE_CLUSTER, Reason.TOKEN_EXPIRING, Reason.CLIENT_CERTIFICATE_EXPIRING),
        *(Reason.NAME_TAKEN, Reason.CHILDREN_LEFT),
    ],
)
def test_each_state_of_a_cluster_has_a_row_and_an_entry_in_operations(reason: Reason) -> None:
    assert PAGE.count(f"\n| `{reason}` |") == 1
    assert OPERATIONS.count(f"\n| `{reason}`") == 1
