"""What the operator's package brings: ``diloco cluster``, and objects for ``diloco render`` and ``diloco chaos``.

It is not in the learners' image.
"""

from importlib.util import find_spec

import typer


class NoOperatorError(RuntimeError):
    """The operator's package is not installed; the text says what to install."""


def needs_operator() -> None:
    """Check that the operator's package is installed.

    Raises:
        NoOperatorError: it is not.
    """
    if find_spec("diloco_operator") is None:
        raise NoOperatorError("clusters need the operator's package: run pip install '.[operator]' in a clone")


def add_cluster_commands(app: typer.Typer, panel: str) -> None:
    """Add ``diloco scale`` and ``diloco cluster``. Without the operator's package they say what to install."""
    if find_spec("diloco_operator") is None:
        anything = {"allow_extra_args": True, "ignore_unknown_options": True}
        app.command("scale", rich_help_panel=panel, context_settings=anything)(_scale)
        app.command("cluster", rich_help_panel=panel, context_settings=anything)(_cluster)
        return
    from diloco_operator.commands import app as commands
    from diloco_operator.commands.scale import scale

    app.command("scale", rich_help_panel=panel)(scale)
    app.add_typer(commands, name="cluster", rich_help_panel=panel)


def _cluster() -> None:
    """Prepare and check other clusters. Needs the operator's package: run pip install '.[operator]' in a clone.

    \b
    Examples:
      diloco cluster prepare learners
    """
    needs_operator()


def _scale() -> None:
    """Scale pools of a job in a cluster. Needs the operator's package: run pip install '.[operator]' in a clone.

    \b
    Examples:
      diloco scale two-regions us-west/old=8
    """
    needs_operator()
