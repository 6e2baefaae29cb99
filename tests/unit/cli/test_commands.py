"""The program: quick if it computes nothing, and one line for a user's mistake."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from diloco import __version__
from diloco.cli.main import app, execute
from diloco.learner.options import LearnerOptions
from tests.support.corpora import write_documents, write_tokenizer
from tests.support.small_manifest import SMALL_MANIFEST


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(SMALL_MANIFEST)
    return path


def test_the_version_is_told_with_the_images_commit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert execute(["--version"]) == 0
    assert capsys.readouterr().out == f"diloco {__version__}\n"
    monkeypatch.setenv("DILOCO_COMMIT", "1f2e")
    assert execute(["--version"]) == 0
    assert capsys.readouterr().out == f"diloco {__version__} (1f2e)\n"


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([]) == 2
    captured = capsys.readouterr()
    assert "validate" in captured.out
    assert "<bool>" not in captured.out
    assert captured.err == ""


def commands() -> list[str]:
    """Every command of the program, those of groups too: ``run``, ``cluster check``."""
    found = []
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]  # of a group
        found += [f"{name} {inner}" for inner in command.commands] if hasattr(command, "commands") else [name]
    return found


@pytest.mark.parametrize(
    ("arguments", "module"),
    [(["validate", "JOB"], "torch"), (["plan", "JOB", "--step", "*=1"], "torch"), (["status", "FOLDER"], "kubernetes")],
    ids=["validate", "plan", "status"],
)
def test_what_a_command_does_not_need_is_not_imported(job: Path, arguments: list[str], module: str) -> None:
    code = f"import sys; from diloco.cli.main import execute; execute(sys.argv[1:]); print('{module}' in sys.modules)"
    places = {"JOB": str(job), "FOLDER": str(job.parent)}
    command = [sys.executable, "-c", code, *(places.get(argument, argument) for argument in arguments)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert told.splitlines()[-1] == "False"


@pytest.mark.parametrize("command", commands())
def test_every_command_teaches_by_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([*command.split(), "--help"]) == 0
    told = capsys.readouterr().out
    assert f"  diloco {command} " in told
    assert "<bool>" not in told  # a flag takes no value


def test_validate_tells_the_choice_of_the_outer_optimizer_in_a_second_line(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["validate", str(job)]) == 0
    valid, chosen = capsys.readouterr().out.splitlines()
    assert valid.startswith(f"{job}: valid. Job small: 2 learner(s) in 1 region(s)")
    assert re.fullmatch(r"Outer optimizer: learning rate 1, momentum 0 \(Auto: .*\)", chosen)


def test_regions_elsewhere_are_told_and_what_is_not_checked(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    elsewhere = "".join(
        f"  - {{name: r{key}, cluster: {{kubeconfigSecretRef: {{name: west, key: {key}}}}}, pools: [{{name: a}}]}}\n"
        for key in ("a", "b")
    )
    exposed = "  syncer: {expose: {type: LoadBalancer}}\n"
    job.write_text(SMALL_MANIFEST.replace("  regions:\n", f"{exposed}  regions:\n{elsewhere}"))
    assert execute(["validate", str(job)]) == 0
    told, _ = capsys.readouterr().out.splitlines()
    assert "In other clusters: ra (Secret west, key a) and rb (Secret west, key b); check each Secret with " in told
    assert "No two of these may lead to the same namespace" in told


def test_what_only_the_operator_refuses_has_its_line(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = "podTemplate: {spec: {volumes: [{name: tls}]}}"
    job.write_text(SMALL_MANIFEST.replace("{name: a, ", f"{{name: a, {wrong}, "))
    assert execute(["validate", str(job)]) == 2
    told = f"{job}:11: spec.regions[0].pools[0].podTemplate.spec.volumes[0].name: tls is set by"
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "warning"),
    [
        ("builtin: {preset: pico}", "huggingface: {path: nowhere}", "6: spec.model.huggingface.path: nowhere"),
        ("text: {}", "text: {path: nowhere}", "7: spec.data.text.path: nowhere"),
        ("text: {}", "tokens: {path: nowhere}", "7: spec.data.tokens.path: nowhere"),
        *(
            ("data: {text: {}}", f"loop: {{entrypoint: '{module}:train'}}", f"7: spec.loop.entrypoint: module {module}")
            for module in ("nowhere", "json.nowhere")
        ),
        ("data: {text: {}}", "loop: {entrypoint: 'json.decoder:train'}", ""),
    ],
    ids=["a model", "text", "tokens", "a loop", "a loop in a package that is there", "a loop that is there"],
)
def test_what_is_not_on_this_machine_is_a_warning(
    job: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, warning: str
) -> None:
    own = SMALL_MANIFEST.replace(old, new).replace("preset: pico", "preset: pico, vocabularySize: 257")
    job.write_text(own)
    assert execute(["validate", str(job)]) == 0
    seen = capsys.readouterr()
    told = [line for line in seen.err.splitlines() if " does not exist here" in line]
    assert [line.startswith(f"diloco: {job}:{warning} does not") for line in told] == ([True] if warning else [])
    assert "huggingface" not in new or "model nowhere" in seen.out


def test_accelerators_that_do_not_count_are_a_warning(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits = "resources: {limits: {nvidia.com/mig-1g.5gb: 4}}"
    job.write_text(SMALL_MANIFEST.replace("learners: 2", f"learners: 2, {limits}"))
    assert execute(["validate", str(job)]) == 0
    assert "limits: nvidia.com/mig-1g.5gb: 4 does not count" in capsys.readouterr().err


def test_the_full_manifest_is_valid_too(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["validate", str(job), "--full"]) == 0
    full = tmp_path / "full.yaml"
    full.write_text(capsys.readouterr().out)
    assert "maxStalenessSteps" in full.read_text()
    assert execute(["validate", str(full)]) == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [("[]", "is not the summary of a run"), ("{}", "is not the summary of a run"), ("nonsense", "not JSON")],
)
def test_an_odd_summary_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, message: str
) -> None:
    (tmp_path / "summary.json").write_text(content)
    assert execute(["status", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"diloco: {tmp_path}/summary.json: " in line
    assert message in line


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run"], "Missing argument 'JOB'"),
        (["run", "none.yaml", "--output", "OUT"], "none.yaml: cannot be read"),
        (["run", "JOB", "--output", "OUT", "--slow", "west=0.5"], "--slow 'west=0.5': 'west' matches no learner"),
        (
            ["run", "JOB", "--output", "OUT", "--chaos", "kill:*"],
            "--chaos 'kill:*': is not a fault; use KIND:TARGET@step=N",
        ),
        (["run", "JOB", "--output", "OUT", "--resume"], "has no run to continue"),
        (["run", "JOB", "--resume"], "/runs/small has no run to continue"),
        (["run", "JOB", "--output", "OUT", "--resume", "--overwrite"], "--resume and --overwrite"),
        (["run", "JOB", "--output", "OUT", "--emulate-link", "x=1Mbit/s"], "--emulate-link x=1Mbit/s: 'x' is not in"),
        (["run", "JOB", "--output", "OUT", "--port", "70000"], "--port: 70000 is not a port; use 1 to 65535"),
        (["run", "JOB", "--output", "JOB/out"], "--output "),
        (["status", "http://[::1"], "http://[::1: does not exist; use the directory of a run, HOST:PORT or"),
        (["status", "nowhere"], "nowhere: does not exist; use the directory of a run, HOST:PORT or"),
        (["status", "JOB"], "job.yaml: is not a directory; use the directory of a run, HOST:PORT or"),
        (["status", "127.0.0.1:1"], "no syncer answers at http://127.0.0.1:1/status"),
        (["top", "127.0.0.1:1"], "no syncer answers at http://127.0.0.1:1/status"),
        (["top", "--every", "0"], "--every"),
        (["top", "--every", "nan"], "--every"),
        (["top", "--every", "1e300"], "--every"),
        (["status", "job/mine", "--kubeconfig", "OUT"], "no kubeconfig: --kubeconfig "),
        (["cluster", "prepare", "Learners"], "NAMESPACE: 'Learners' is not the name of a namespace; use "),
        (["cluster", "prepare", "x" * 64], "at most 63 characters"),
        (["cluster", "prepare", "learners", "--service-account", "a/b"], "--service-account: 'a/b' is not the name"),
        (["cluster", "kubeconfig", "--name", "west", "--duration", "9min"], "is too short; use at least 10min"),
        (
            ["cluster", "kubeconfig", "--name", "west", "--kubeconfig", "OUT"],
            "/out is not a file; use the path of a kubeconfig",
        ),
        (["cluster", "check", "JOB", "--secret", "west"], "SECRET-FILE: use either a file or --secret NAME"),
        (["cluster", "check", "none.yaml"], "none.yaml: No such file or directory"),
        (["cluster", "check", "--secret", "-"], "--secret: '-' is not the name of a Secret"),
        (["cluster", "orphans", "--delete"], "--delete: needs --home ID"),
        (["cluster", "revoke", "a/b", "west"], "JOB: 'a/b' is not the name of a job"),
        (["cluster", "orphans", "-A", "-n", "x"], "--all-namespaces: cannot be used with --namespace x"),
        (["replay", "nowhere"], "nowhere: does not exist; use the directory of a run"),
        (["replay", "FOLDER"], "has no tape"),
        (["chaos", "nowhere"], "nowhere: does not exist; use the directory of a run"),
        (["chaos", "FOLDER"], "no run is going on there"),
        (["chaos", "FOLDER", "--for", "8d"], "--for: '8d' is too long; use at most 168h"),
        (["chaos", "FOLDER", "--json", "none/a.json"], "--json: none/a.json cannot be written; use a file"),
        (["chaos", "FOLDER", "--json", "."], "--json: . cannot be written"),
        (["plan", "JOB", "--parameters", "many"], "--parameters: 'many' is not a number; use digits and a unit"),
        (["tokens", "nowhere", "--output", "OUT"], "TEXT: nowhere does not exist"),
        (["tokens", "no*.parquet", "--output", "OUT"], "data.documents.path: no*.parquet matches no file"),
        (["tokens", "JOB", "--column", "a", "--include", "*", "-o", "OUT"], "--include: has no use with documents"),
        (["tokens", "JOB", "--tokenizer", "FOLDER", "-o", "OUT"], "tokenizer: FOLDER has no tokenizer.json"),
        (["evaluate", "--job", "none.yaml", "--model", "JOB"], "none.yaml"),
        (["evaluate", "--job", "JOB", "--model", "none.safetensors"], "none.safetensors: cannot be read: no such file"),
        (["evaluate", "--job", "JOB", "--model", "JOB"], "job.yaml: cannot be read as safetensors"),
        (["evaluate", "--job", "JOB", "--model", "JOB", "--device", "abacus"], "--device: abacus is not a device"),
        (["learner", "--job", "none.yaml", "--learner", "a/b/0", "--syncer", "x:1", "--directory", "OUT"], "none.yaml"),
        (
            ["learner", "--job", "JOB", "--learner", "a/b/0", "--syncer", "127.0.0.1:1", "--directory", "OUT"],
            "--learner: 'a/b/0'",
        ),
        (["syncer", "--job", "JOB", "--directory", "OUT", "--tls-ca", "JOB"], "use all three or none"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], told: str, job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(job.parent)
    places = {"JOB": str(job), "OUT": str(job.parent / "out"), "JOB/out": str(job / "out"), "FOLDER": str(job.parent)}
    assert execute([places.get(argument, argument) for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("diloco: ")
    assert told.replace("FOLDER", places["FOLDER"]) in captured.err
    assert len(captured.err.splitlines()) == 1
    assert captured.out == ""
    assert not (job.parent / "out").exists()


def test_a_learner_with_a_loop_has_its_cuda_devices_from_zero_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = Path(__file__).resolve().parents[3] / "examples/session/job.yaml"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    began: list[str | None] = []

    def run_learner(options: LearnerOptions, _: object) -> int:
        began.extend((os.environ["CUDA_VISIBLE_DEVICES"], options.device))
        return 0

    monkeypatch.setattr("diloco.learner.process.learner_process.run_learner", run_learner)
    learner = ["learner", "--learner", "here/cpu/1", "--syncer", "127.0.0.1:1", "--directory", str(tmp_path)]
    assert execute([*learner, "--job", str(example), "--device", "cuda:2"]) == 0
    assert began == ["6", "cuda"]


def test_every_problem_of_a_manifest_is_a_line_of_its_own(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job.write_text(SMALL_MANIFEST.replace("tokens: 1000", "tokens: -1").replace("interval: 4", "intervall: 4"))
    assert execute(["validate", str(job)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("diloco: ") for line in lines)


def test_a_token_file_is_made_from_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "book.txt").write_text("to be " * 100)
    output = tmp_path / "book.tokens"
    assert execute(["tokens", str(tmp_path / "book.txt"), "--output", str(output)]) == 0
    assert output.is_file()
    assert "601 tokens of a vocabulary of 257" in capsys.readouterr().out


@pytest.mark.parametrize("options", [[], ["--column", "text"]])
def test_a_token_file_is_made_from_documents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    for name in ("a.parquet", "b.parquet"):
        write_documents(tmp_path / name, ["the cat sat", "a mat"])
    words = write_tokenizer(tmp_path / "words")
    arguments = [str(tmp_path / "*.parquet"), "--tokenizer", str(words), "-o", str(tmp_path / "out"), *options]
    assert execute(["tokens", *arguments]) == 0
    captured = capsys.readouterr()
    assert "14 tokens of a vocabulary of 8" in captured.out
    assert captured.err == ""
