"""Objects as YAML that people and Go programs read.

Text of several lines is a block, there are no aliases between objects, and text that kubectl and helm would take for a
number, such as ``12e4``, is quoted.
"""

import re
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
for _kind, _form in (("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+"), ("int", r"[-+]?0o[0-7]+")):
    _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(f"^{_form}$"), list("-+.0123456789"))
