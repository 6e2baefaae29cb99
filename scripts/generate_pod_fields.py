"""Writes the fields of Kubernetes' types that a job passes on to pods, from the installed client's models.

python scripts/generate_pod_fields.py            # write them
python scripts/generate_pod_fields.py --check    # fail if they are not what the client says
"""

import sys
import textwrap
from importlib.metadata import version
from typing import Annotated, Any, get_args, get_origin

from generated import REPOSITORY, main
from kubernetes.client import models
from pydantic import BaseModel

PLACE = REPOSITORY / "trainer/diloco/spec/kube/fields.py"
COMMAND = "make pod-fields"
ROOTS = (
    "Affinity", "Container", "EnvFromSource", "EnvVar", "HostAlias", "LocalObjectReference", "PodDNSConfig",
    "PodResourceClaim", "PodSchedulingGate", "ResourceClaim", "Toleration", "TopologySpreadConstraint", "Volume",
    "VolumeMount",
)  # fmt: skip
"""The types that `diloco.spec.pods` names; what they are made of follows."""
KEPT = {"ObjectMeta": {"annotations", "labels"}}
"""All that the metadata of a claim's template may have."""
PAGE = '''\
"""Kubernetes {version}'s fields of what a job passes on to pods. Made by `{command}`; do not edit."""

from typing import Final

PUBLISHED: Final = """
{types}
"""
"""One type a line: each field's name, ``!`` if it is required, and its type; ``[X]`` is a list, ``{{X}}`` a mapping."""
'''


def page() -> str:
    """The whole module."""
    found = dict[str, str]()
    waiting = [_model(name) for name in ROOTS]
    while waiting:
        model = waiting.pop()
        if _name(model) not in found:
            kept = KEPT.get(_name(model), model.model_fields)
            fields = {
                field.serialization_alias or name: field for name, field in model.model_fields.items() if name in kept
            }
            found[_name(model)] = " ".join(
                f"{name}{'!' * field.is_required()}={_type(field.annotation)}" for name, field in sorted(fields.items())
            )
            waiting += [inner for field in fields.values() for inner in _models_in(field.annotation)]
    lines = (
        "\n".join(textwrap.wrap(f"{name}: {found[name]}", 118, subsequent_indent="  ", break_on_hyphens=False))
        for name in sorted(found)
    )
    minor = version("kubernetes").partition(".")[0]
    return PAGE.format(version=f"1.{minor}", command=COMMAND, types="\n".join(lines))


def _model(name: str) -> type[BaseModel]:
    found: type[BaseModel] = getattr(models, f"CoreV1{name}", None) or getattr(models, f"V1{name}")
    return found


def _name(model: type[BaseModel]) -> str:
    return model.__name__.removeprefix("Core").removeprefix("V1")


def _type(annotation: Any) -> str:
    if isinstance(annotation, type):
        return _name(annotation) if issubclass(annotation, BaseModel) else annotation.__name__
    origin, arguments = get_origin(annotation), [one for one in get_args(annotation) if one is not type(None)]
    if origin is dict:
        return f"{{{_type(arguments[1])}}}"
    if origin is list:
        return f"[{_type(arguments[0])}]"
    return _type(arguments[0]) if origin is Annotated or len(arguments) == 1 else "IntOrString"


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for one in get_args(annotation) for model in _models_in(one)]


if __name__ == "__main__":
    sys.exit(main(lambda: {PLACE: page()}, COMMAND))
