import os
import re
from pathlib import Path

import pytest

from diloco.cli.main import execute
from tests.support.golden import REWRITE_VARIABLE

PAGE = Path(__file__).resolve().parents[3] / "docs/how-to/links.md"
JOB = """
apiVersion: diloco.dev/v1alpha1
kind: DiLoCoJob
metadata: {name: corpus}
spec:
  model: {builtin: {preset: gpt2, vocabularySize: 257}}
  data: {text: {}}
  training: {tokens: 1_000_000_000, sequenceLength: 512}
  regions:
  - {name: us-east, pools: [{name: new, learners: 4}]}
  - {name: us-west, pools: [{name: old, learners: 4}]}
"""
COMMAND = re.compile(r"```sh\n(diloco plan .*?)```\n", re.DOTALL)
OUTPUT = re.compile(r"(```text\n).*?(```\n)", re.DOTALL)


def test_the_page_shows_what_its_command_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = PAGE.read_text(encoding="utf-8")
    found = COMMAND.search(page)
    assert found is not None
    job = tmp_path / "job.yaml"
    job.write_text(JOB)
    arguments = [str(job) if word == "job.yaml" else word for word in found[1].replace("\\\n", " ").split()[1:]]
    monkeypatch.setenv("COLUMNS", "110")
    execute(arguments)
    printed = "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())
    shown = OUTPUT.sub(lambda block: f"{block[1]}{printed}\n{block[2]}", page, count=1)
    if os.environ.get(REWRITE_VARIABLE):
        PAGE.write_text(shown, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == shown, f"{REWRITE_VARIABLE}=1 rewrites it"
