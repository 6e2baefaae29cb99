import os
import threading
from pathlib import Path

import pytest

from diloco.spec import DiLoCoJob, SpecError, load_job, parse_job
from diloco.spec.reading import load
from diloco.spec.reading.document import MAXIMUM_DEPTH, MAXIMUM_VALUES, read_document
from diloco.spec.reading.load import MAXIMUM_BYTES

MANIFEST = """\
apiVersion: diloco.dev/v1alpha1
kind: DiLoCoJob
metadata: {name: two-regions, labels: {team: research}}
spec:
  model: {builtin: {preset: pico}}
  data: {text: {}}
  training: {tokens: 2e6, optimizer: {learningRate: 2e-3}}
  regions:
  - name: us-east
    pools: [{name: fast, learners: 2}]
  - name: us-west
    pools: [{name: new}, {name: old}]
"""


def refused(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        parse_job(text, "job.yaml")
    return str(caught.value)


def test_a_manifest_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(MANIFEST)
    job = load_job(path)
    assert job.metadata.name == "two-regions"
    assert job.spec.training.tokens == 2_000_000
    assert job.spec.training.optimizer.learning_rate == 0.002


def test_learners_are_numbered_in_the_order_of_the_manifest() -> None:
    assert parse_job(MANIFEST).spec.learner_ids == (
        "us-east/fast/0",
        "us-east/fast/1",
        "us-west/new/0",
        "us-west/old/0",
    )


def test_the_defaults_are_the_papers() -> None:
    sync = parse_job(MANIFEST).spec.sync
    assert (sync.fragments, sync.interval, sync.least_overlap, sync.quorum) == (24, 24, 2, 1)
    assert sync.merge == "RDA"


def test_a_job_written_as_json_reads_back_the_same() -> None:
    job = parse_job(MANIFEST)
    assert parse_job(job.model_dump_json(by_alias=True)) == job


def test_what_an_operator_reports_in_status_is_let_pass() -> None:
    assert parse_job(MANIFEST + "status: {phase: Running}\n").status == {"phase": "Running"}


def test_a_job_made_in_code_is_checked_too() -> None:
    plain = parse_job(MANIFEST).model_dump()
    plain["spec"]["sync"]["quorum"] = 9
    with pytest.raises(ValueError, match=r"sync\.quorum: 9 is above the learners of spec"):
        DiLoCoJob.model_validate(plain)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; use a YAML mapping"),
        (b"# nothing but a remark\n", "is empty; use a YAML mapping"),
        (b"\x7fELF\x02\x01\x01\x00\xff\xfe", "is not UTF-8 text; a manifest is YAML"),
        (b"a: \x00\n", "is not text: character #x0000 is not allowed in YAML"),
        (b"a: 1\n" * MAXIMUM_BYTES, "is larger than 256 KiB; a manifest is a few KiB of YAML"),
        (b"just words\n", "is not a mapping; begin with apiVersion, kind, metadata and spec"),
    ],
    ids=["empty", "only-a-comment", "binary", "zero-byte", "huge", "no-mapping"],
)
def test_a_file_that_is_no_manifest_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(content)
    with pytest.raises(SpecError) as caught:
        load_job(path)
    assert str(caught.value) == f"{path}: {message}"


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"job\.yaml: cannot be read: no such file or directory; use the path of a"):
        load_job(tmp_path / "job.yaml")


def test_a_folder_is_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be read: is a directory"):
        load_job(tmp_path)


def test_an_endless_file_is_not_read_to_its_end() -> None:
    with pytest.raises(SpecError, match="is larger than 256 KiB"):
        load_job(os.devnull.replace("null", "zero"))


def test_a_byte_order_mark_is_let_pass(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(MANIFEST, encoding="utf-8-sig")
    assert load_job(path) == parse_job(MANIFEST)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\nb: [1,\n", "job.yaml:3: is not valid YAML: expected the node content, but found '<stream end>'"),
        ("a: 1\n\tb: 2\n", "job.yaml:2: is not valid YAML: found character '\\t' that cannot start any token"),
        ("a: b: c\n", "job.yaml:1: is not valid YAML: mapping values are not allowed here"),
        ("a: 1\nb: 2\na: 3\n", "job.yaml:3: key a appears twice in one mapping; remove one"),
        ("a:\n  b: 1\n  b: 1\n", "job.yaml:3: key b appears twice in one mapping; remove one"),
        ("a: 1\n---\nb: 2\n", "job.yaml:2: a second document begins; use one document per file"),
        ("a: *b\n", "job.yaml:1: alias *b has no anchor before it"),
        ("a: &a [*a]\n", "job.yaml:1: alias *a has no anchor before it"),
        ("? [a, b]\n: 1\n", "job.yaml:1: a key is a list, a mapping or an alias; use text"),
        (
            "a: !!python/object/apply:os.system [ls]\n",
            "job.yaml:1: tag tag:yaml.org,2002:python/object/apply:os.system is not allowed; use plain values",
        ),
        ("a: !secret b\n", "job.yaml:1: tag !secret is not allowed; use plain values"),
        ("<<: 5\n", "job.yaml:1: key << is not an alias of a mapping; use one, or a list of them"),
        (f"a: {'9' * 65}\n", "job.yaml:1: a number has 65 characters; use at most 64, or quotes"),
        *(
            (
                f"a: {number}\n",
                f"job.yaml:1: {number} is not read as a number by every YAML parser; use decimal notation, or quotes",
            )
            for number in ("007", "-0x1F", "1_0.5", ".inf")
        ),
        ("a: 1e400\n", "job.yaml:1: 1e400 is more than 64 bits can hold; use a smaller number, or quotes"),
        (f"a: {2**63}\n", f"job.yaml:1: {2**63} is more than 64 bits can hold; use a smaller number, or quotes"),
        ("{y: 1}\n", "job.yaml:1: key y is not text to kubectl; put it in quotes"),
        ("{0x10: 1}\n", "job.yaml:1: key 0x10 is not text to kubectl; put it in quotes"),
        ('a: "\\uD800"\n', "job.yaml:1: half a surrogate pair is not text; use the character itself"),
        ("\na: " + "[" * 99, f"job.yaml:2: values are nested more than {MAXIMUM_DEPTH} deep"),
    ],
    ids=str,
)
def test_bad_yaml_is_refused_with_its_line(text: str, line: str) -> None:
    assert refused(text) == line


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("preset: pico", "preset: nan", 'job.yaml:5: spec.model.builtin.preset: "nan" is not known; use pico,'),
        ("tokens: 2e6", "tokens: 5M", 'job.yaml:7: spec.training.tokens: "5M" is not an integer; use 5000000'),
        ("{name: new}", "{name: -}", 'job.yaml:12: spec.regions[1].pools[0].name: "-" does not fit; use a name'),
        (
            "{name: new}, ",
            "&new {name: new}, *new, ",
            "job.yaml:12: spec.regions[1].pools[1].name: new is there already",
        ),
        ("  - name: us-west\n  ", "  - x: 1\n  ", "job.yaml:11: spec.regions[1].name: is missing"),
        ("kind: DiLoCoJob\n", "", "kind: is missing; use DiLoCoJob"),
        (
            "  regions:\n",
            "  sync:\n    quorum: 9\n  regions:\n",
            "job.yaml:9: spec.sync.quorum: 9 is above the learners",
        ),
    ],
)
def test_a_problem_of_a_manifest_has_its_line(old: str, new: str, line: str) -> None:
    assert line in refused(MANIFEST.replace(old, new))


def test_aliases_cannot_blow_up_a_manifest() -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    for name, inner in zip("bcdefgh", "abcdefg", strict=True):
        bomb += f"{name}: &{name} [{', '.join([f'*{inner}'] * 10)}]\n"
    assert refused(bomb) == f"job.yaml:5: holds more than {MAXIMUM_VALUES} values, aliases counted in full"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("-5", -5),
        ("1_000", 1000),
        ("0x1F", 31),
        ("2e6", 2_000_000),
        ("2e-3", 0.002),
        ("2.5", 2.5),
        (".5", 0.5),
        ("1:30", "1:30"),
        ("2026-01-31", "2026-01-31"),
        ("_1", "_1"),
        ("1.2.3", "1.2.3"),
        ("12e", "12e"),
        ("-", [None]),
        ("~", None),
        ("off", False),
        ("True", True),
        ("'5'", "5"),
        ("!!str 5", "5"),
        ("|\n  5\n", "5\n"),
        ("None", "None"),
        ("[a, {b: }]", ["a", {"b": None}]),
        ("{a: &x 1, b: *x}", {"a": 1, "b": 1}),
        ("{'yes': 1, 5: 2}", {"yes": 1, "5": 2}),
        ("{base: &b {x: 1, z: 1}, own: {z: 2, <<: *b}}", {"base": {"x": 1, "z": 1}, "own": {"x": 1, "z": 2}}),
        ("{<<: [{x: 1}, {x: 2, z: 2}]}", {"x": 1, "z": 2}),
    ],
    ids=repr,
)
def test_yaml_becomes_what_json_can_say(text: str, value: object) -> None:
    read = read_document(text, "job.yaml")
    assert read == value
    assert type(read) is type(value)


def test_a_pipe_to_which_nobody_writes_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "_PATIENCE_SECONDS", 0.05)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SpecError, match=r"pipe: cannot be read: no data has arrived for 0.05 s; use the path"):
        load_job(tmp_path / "pipe")


def test_a_manifest_may_come_through_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(MANIFEST,))
    writer.start()
    assert load_job(pipe).metadata.name == "two-regions"
    writer.join()
