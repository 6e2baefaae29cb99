"""Generates the CustomResourceDefinition of ``DiLoCoJob`` from the models, as a plain dict. Pure.

So an API server accepts the manifest of ``diloco run`` byte for byte: same fields, defaults, bounds and checks.
"""

from functools import cache
from typing import Any

from diloco.spec.base import DNS_LABEL
from diloco.spec.crd.immutability import add_immutability
from diloco.spec.crd.rules import RULES
from diloco.spec.crd.schema import StructuralSchema, add_rules, at
from diloco.spec.job import API_VERSION, KIND, DiLoCoJob
from diloco.spec.status.job import JobStatus
from diloco.spec.words import Schema, SchemaReader

PLURAL = "dilocojobs"
GROUP, _, VERSION = API_VERSION.partition("/")
NAME = f"{PLURAL}.{GROUP}"

_COLUMNS = (
    # Name, type, path, priority (above 0: only with `--output wide`), description.
    ("Phase", "string", ".status.phase", 0, "What the job is doing."),
    ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', 0, "Whether the quorum trains."),
    ("Progress", "string", ".status.progress.percent", 0, "Merged tokens of the budget."),
    ("Learners", "string", ".status.learners.summary", 0, "Training/desired learners."),
    ("Loss", "string", ".status.progress.loss", 0, "The newest evaluation loss."),
    ("Age", "date", ".metadata.creationTimestamp", 0, "Since the job was created."),
    ("Step", "integer", ".status.progress.step", 1, "Steps of the syncer."),
    ("Goodput", "string", ".status.progress.goodput", 1, "Share of the learners' time in which they compute."),
    ("Reason", "string", ".status.reason", 1, "Why it is in that phase."),
    ("Syncer", "string", ".status.syncer.endpoint", 1, "Where learners connect."),
)


def custom_resource_definition() -> dict[str, Any]:
    """The whole object, ready to apply."""
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [_column(*column) for column in _COLUMNS],
        "schema": {"openAPIV3Schema": job_schema()},
    }
    names = {
        "kind": KIND,
        "listKind": f"{KIND}List",
        "plural": PLURAL,
        "singular": KIND.lower(),
        "shortNames": ["dlj"],
        "categories": ["diloco"],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME},
        "spec": {"group": GROUP, "names": names, "scope": "Namespaced", "versions": [version]},
    }


@cache
def job_schema() -> Schema:
    """The structural schema of a whole job, with its rules. Shared: not to be changed."""
    job = DiLoCoJob.model_json_schema(by_alias=True)
    status = JobStatus.model_json_schema(by_alias=True)
    properties: Schema = {
        "apiVersion": {"type": "string", "description": f"The version of this format: {API_VERSION}."},
        "kind": {"type": "string", "description": f"What this manifest describes: {KIND}."},
        # A custom resource's schema may restrict only the name in metadata.
        "metadata": {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 63, "pattern": DNS_LABEL}},
        },
        "spec": StructuralSchema(SchemaReader(job), defaults=True).of(job["properties"]["spec"]),
        "status": StructuralSchema(SchemaReader(status), defaults=False).of(status),
    }
    schema: Schema = {
        "type": "object",
        "description": "A training job.",
        "required": ["spec"],
        "properties": properties,
    }
    for path, rules in RULES.items():
        add_rules(at(schema, path), [rule.as_object() for rule in rules])
    add_immutability(schema)
    return schema


def _column(name: str, kind: str, path: str, priority: int, description: str) -> dict[str, Any]:
    made = {"name": name, "type": kind, "jsonPath": path, "description": description}
    return {**made, "priority": priority} if priority else made
