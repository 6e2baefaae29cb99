import pytest

from diloco.cli import needs_operator
from diloco.cli.program import new_app, run_command


def test_without_the_operators_package_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(needs_operator, "find_spec", lambda _: None)
    app = new_app()
    app.command("other")(lambda: None)
    needs_operator.add_cluster_commands(app, "Work with jobs")
    assert run_command(app, ["cluster", "check", "west.yaml", "--key", "x"]) == 2
    told = "diloco: clusters need the operator's package: run pip install '.[operator]' in a clone\n"
    assert capsys.readouterr().err == told
