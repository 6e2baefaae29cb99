"""Objects as YAML that people read: text of several lines as blocks, and no aliases between objects."""

from collections.abc import Iterable
from typing import Any

import yaml


def yaml_text(made: Any) -> str:
    """One value as YAML, its keys in their order."""
    return yaml.dump(made, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def yaml_documents(objects: Iterable[Any]) -> str:
    """Objects as YAML documents, each begun by ``---``."""
    return yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, explicit_start=True, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  # the base class's
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text.rstrip("\n") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
