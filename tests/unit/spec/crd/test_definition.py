from collections.abc import Iterator
from typing import Any

from diloco.spec import DiLoCoJob
from diloco.spec.crd.definition import custom_resource_definition, job_schema
from diloco.spec.crd.immutability import MUTABLE
from diloco.spec.crd.rules import RULES
from diloco.spec.crd.schema import at
from tests.support.job_manifests import GOOD, GOOD_JOBS

Schema = dict[str, Any]
KINDS = {"type", "x-kubernetes-int-or-string"}
"""What a part of a structural schema says of its kind."""


def places(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every part of a structural schema that is a field or an item, with its path."""
    for name, field in schema.get("properties", {}).items():
        place = f"{path}.{name}".lstrip(".")
        yield place, field
        yield from places(field, place)
        if "items" in field:
            yield from places(field["items"], f"{place}[]")


def values(value: Any, path: str) -> Iterator[str]:
    """The path of every field in a manifest."""
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from values(inner, f"{path}.{key}")
    if isinstance(value, list):
        for inner in value:
            yield from values(inner, f"{path}[]")


def filled(value: Any, schema: Schema) -> Any:
    """``value`` with defaults, as an API server fills them in."""
    if isinstance(value, dict) and "properties" in schema:
        fields = schema["properties"]
        defaults = {name: field["default"] for name, field in fields.items() if "default" in field}
        return {name: filled(inner, fields.get(name, {})) for name, inner in (defaults | value).items()}
    if isinstance(value, list):
        return [filled(inner, schema["items"]) for inner in value]
    return value


def test_the_schema_is_structural() -> None:
    text = str(custom_resource_definition())
    for word in ("$ref", "anyOf", "allOf", "oneOf", "'const'", "'title'", "'additionalProperties': False"):
        assert word not in text


def test_no_item_of_a_list_is_given_defaults() -> None:
    # Argo CD and client-side apply compare lists whole, and would find a difference for ever.
    assert not [place for place, field in places(job_schema()) if "[]." in place and "default" in field]


def test_no_rule_in_a_list_compares_numbers_or_words_at_full_length() -> None:
    """Kubernetes 1.33 refuses such rules: it counts each value as 3 MB long."""
    schema = job_schema()
    mixed = [place for place, field in places(schema) if "[]." in place and field.get("x-kubernetes-int-or-string")]
    assert "spec.regions[].pools[].storage.size" in mixed
    for place in mixed:
        own, (parent, _, name) = at(schema, place), place.rpartition(".")
        rules = [one["rule"] for node in (own, at(schema, parent)) for one in node.get("x-kubernetes-validations", [])]
        assert not [rule for rule in rules if "type(self) ==" in rule or f"self.{name} == oldSelf.{name}" in rule]


def test_the_schema_fills_in_defaults_outside_optional_objects() -> None:
    spec = filled(GOOD, job_schema())["spec"]
    assert (spec["model"], spec["data"].pop("text")) == (GOOD["spec"]["model"], {})
    dumped = DiLoCoJob.model_validate(GOOD).spec.model_dump(mode="json", by_alias=True, exclude_none=True)

    def without_empty(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without_empty(inner) for key, inner in value.items() if inner not in ({}, [])}
        return [without_empty(inner) for inner in value] if isinstance(value, list) else value

    dumped["model"], dumped["data"]["text"] = spec["model"], {}
    dumped["regions"] = GOOD["spec"]["regions"]
    assert without_empty(spec) == without_empty(dumped)


def test_null_means_no_more_than_leaving_a_field_out() -> None:
    # `kubectl apply` drops nulls before an API server sees them: a null with a meaning would be lost.
    definitions = DiLoCoJob.model_json_schema()["$defs"]
    meaningful = [
        f"{model}.{name}"
        for model, schema in definitions.items()
        for name, field in schema.get("properties", {}).items()
        if {"type": "null"} in field.get("anyOf", ()) and field.get("default") is not None
    ]
    assert meaningful == []


def test_every_field_is_in_a_good_job() -> None:
    there = {path for job in GOOD_JOBS.values() for path in values(job["spec"], "spec")}
    assert [place for place, _ in places(job_schema()) if place.startswith("spec.") and place not in there] == []


def test_every_field_but_kubernetes_own_is_described() -> None:
    undescribed = [
        place
        for place, field in places(job_schema())
        if "description" not in field
        and ".podTemplate.spec." not in place
        and not place.endswith((".env[].name", ".claims[].name", ".imagePullSecrets[].name"))
    ]
    assert undescribed == ["metadata", "metadata.name"]


def test_nothing_is_without_end() -> None:
    endless = [
        place
        for place, field in places(at(job_schema(), "spec"), "spec")
        if (field.get("type") == "array" and "maxItems" not in field)
        or (field.get("type", "string") == "string" and not {"maxLength", "enum", "format"} & set(field))
        or ("additionalProperties" in field and "maxProperties" not in field)
    ]
    assert endless == []


def test_what_is_listed_as_mutable_or_has_rules_is_there() -> None:
    of_rules = (".".join(filter(None, (path, rule.field))) for path, rules in RULES.items() for rule in rules)
    for path in (*MUTABLE, *RULES, *of_rules):
        assert KINDS & at(job_schema(), path).keys()


def test_defaults_inside_an_object_apply_where_the_object_is_absent() -> None:
    schema = job_schema()
    for place, field in places(at(schema, "spec"), "spec"):
        inner = [name for name, part in field.get("properties", {}).items() if "default" in part]
        required_in = at(schema, place.rpartition(".")[0]).get("required", ())
        absent_by_choice = {
            "spec.model.builtin", "spec.model.huggingface", "spec.model.adapter", "spec.data.text",
            "spec.regions[].cluster", "spec.training.optimizer.muon",
            "spec.syncer.podTemplate", "spec.syncer.backup", "spec.initFrom", "spec.regions[].pools[].podTemplate",
            "spec.regions[].pools[].storage", "spec.data.documents", "spec.data.mixture[].documents",
            "spec.data.mixture[].text",
        }  # fmt: skip
        if inner and place.rpartition(".")[2] not in required_in and place not in absent_by_choice:
            assert field.get("default") == {}, place
