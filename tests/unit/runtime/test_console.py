import io

from rich.table import Table

from diloco.runtime.console import new_console


def test_a_users_text_is_shown_as_it_is() -> None:
    shown = io.StringIO()
    table = Table(box=None)
    table.add_column("[red]:train:")
    table.add_row("mine:train:8 [bold]")
    new_console(shown).print("entrypoint mine:train:8 [bold]", table)
    assert "entrypoint mine:train:8 [bold]" in shown.getvalue()
    assert "\n mine:train:8 [bold]" in shown.getvalue()
    assert "[red]:train:" in shown.getvalue()
