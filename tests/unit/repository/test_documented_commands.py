"""The helm and kubectl commands of the documentation are found, and those that no test runs are among them."""

from pathlib import Path

from tests.support.documented_commands import NOT_RUN, READMES, commands, commands_of_notes, commands_to_run

REPOSITORY = Path(__file__).resolve().parents[3]


def test_a_reason_is_given_only_for_commands_that_are_there() -> None:
    told = [command for readme in READMES for command in commands((REPOSITORY / readme).read_text(encoding="utf-8"))]
    assert [start for start in NOT_RUN if not any(command.startswith(start) for command in told)] == []


def test_each_readme_tells_how_to_install_and_to_apply() -> None:
    for readme in READMES:
        run = commands_to_run((REPOSITORY / readme).read_text(encoding="utf-8"))
        assert [command.split()[:2] for command in run][:2] == [["helm", "install"], ["kubectl", "apply"]]


def test_commands_are_those_of_shell_blocks_that_act_on_a_cluster() -> None:
    document = (
        "```sh\nhelm two \\\n  --three\n\nmake x\n```\n\n```yaml\nhelm x\n```\nkubectl y\n```sh\nkubectl one\n```\n"
    )
    assert commands(document) == ["helm two --three", "kubectl one"]


def test_commands_of_notes_are_found_with_their_input() -> None:
    notes = "Look:\n\n  kubectl get x\n\nkubectl apply -f - <<'JOB'\nkind: X\nJOB\n  helm test y\n"
    assert commands_of_notes(notes) == ["kubectl get x", "kubectl apply -f - <<'JOB'\nkind: X\nJOB", "helm test y"]
