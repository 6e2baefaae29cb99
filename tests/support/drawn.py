"""What Rich draws, as text."""

import io

from rich.console import Console, RenderableType


def drawn(what: RenderableType, width: int = 110) -> str:
    """As in a terminal of this width, without its styles and without spaces at the ends of lines."""
    console = Console(file=io.StringIO(), width=width, record=True)
    console.print(what)
    return "\n".join(line.rstrip() for line in console.export_text().splitlines())
