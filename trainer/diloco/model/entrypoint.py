"""Loads ``package.module:factory``, a model or data source of the user's own.

Importing runs the user's code, so this is done only for entrypoints in a manifest, never for names read from other
files.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


class EntrypointError(ValueError):
    """An entrypoint cannot be used; the text names the field, the entrypoint and what is wrong."""


def load_entrypoint(entrypoint: str, field: str) -> Callable[..., Any]:
    """The callable that ``entrypoint`` names. ``field`` is its place in the manifest, for messages.

    Raises:
        EntrypointError: not importable, no such name, or not callable.
    """
    module_name, _, name = entrypoint.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        # The user's module may raise anything while it is imported: show it to the user in one line.
        raise EntrypointError(
            f"{field}: cannot import {module_name} ({one_line(error)}); its folder must be on PYTHONPATH"
        ) from error
    factory = getattr(module, name, None)
    if factory is None:
        raise EntrypointError(f"{field}: {module_name} has no {name}")
    if not callable(factory):
        raise EntrypointError(f"{field}: {entrypoint} is a {type(factory).__name__}, not callable")
    return factory  # type: ignore[no-any-return]  # callable() gives no more precise type


def call_entrypoint(entrypoint: str, arguments: Mapping[str, Any], field: str) -> Any:
    """The factory's result for ``arguments``.

    Raises:
        EntrypointError: it cannot be loaded, or it raised.
    """
    factory = load_entrypoint(entrypoint, field)
    try:
        return factory(**arguments)
    except (Exception, SystemExit) as error:
        raise EntrypointError(f"{field}: {entrypoint} raised {one_line(error)}") from error


def one_line(error: BaseException) -> str:
    """``error`` as one line: its type and the first line of its text."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
