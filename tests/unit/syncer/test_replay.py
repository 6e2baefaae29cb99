"""A tape comes out as it was made, and whatever was changed since is found and named."""

import json
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from diloco.core.engine.events import Merged
from diloco.core.merge.member_sizes import NO_PAST
from diloco.model.tensor_file import write_tensor_file
from diloco.runtime.files import sha256_bytes
from diloco.spec import DiLoCoJob
from diloco.syncer.replay import ReplayError, replay
from diloco.tape.keeper import TapeLimits
from diloco.tape.reader import TapeReader, seal
from diloco.tape.segments import find_tapes
from tests.unit.syncer.recorded_run import RecordedRun, only_problem, recorded_job

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def two_lives(directory: Path, job: DiLoCoJob) -> Path:
    """Two epochs: the first syncer dies, the second goes on from its checkpoint to the end."""
    first = RecordedRun(directory, job)
    first.train(6)
    first.checkpoint()
    first.train(2)
    second = RecordedRun(directory, job, epoch=2, limits=TapeLimits(segment_bytes=20_000, kept_bytes=None))
    second.train(60)
    second.checkpoint()
    second.end()
    return directory


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of two epochs of a syncer."""
    return two_lives(tmp_path_factory.mktemp("made") / "syncer", recorded_job(downlink="Int8"))


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A copy that the test may change."""
    return Path(shutil.copytree(made, tmp_path / "syncer"))


def first_tape(run: Path) -> Path:
    return run / "tape" / "000001.jsonl"


def rewrite(segments: Iterable[Path], change: Callable[[dict[str, Any]], None]) -> None:
    """Change the lines of one epoch's tape, and give them the hashes that go with it."""
    chain = ""
    for path in segments:
        lines = []
        for line in path.read_bytes().splitlines():
            body = json.loads(line)
            del body["chain"]
            change(body)
            text, chain = seal(body, chain)
            lines.append(text)
        path.write_bytes(b"".join(lines))


@pytest.mark.parametrize(
    "sync",
    [{}, {"downlink": "BF16"}, {"anchor": "Current", "downlink": "Int8"}, {"compression": "TopK", "downlink": "TopK"}],
    ids=str,
)
def test_every_decision_and_every_merge_comes_out_the_same(tmp_path: Path, sync: dict[str, Any]) -> None:
    run = two_lives(tmp_path / "syncer", recorded_job(**sync))
    report = replay(run)
    assert report.ok, report.problems
    first, second = report.epochs
    assert (first.epoch, second.epoch) == (1, 2)
    assert first.merges == first.merges_redone > 3
    assert second.merges == second.merges_redone > 10
    assert second.decisions > second.events / 2
    assert len(find_tapes(run / "tape")[1].segments) > 1
    assert list(report.explanation) == []


def test_merges_are_redone_with_what_was_left_over_at_the_checkpoint(run: Path) -> None:
    manifest = run / "checkpoints" / "000002" / "manifest.json"
    plain = json.loads(manifest.read_text())["manifest"]
    file, of_file = manifest.with_name("00000.safetensors"), plain["files"]["00000.safetensors"]
    there = {name: values.clone() for name, values in load_file(file).items()}
    there["residual"].zero_()
    of_file["sha256"] = write_tensor_file(file, there)
    digest = sha256_bytes(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode())
    manifest.write_text(json.dumps({"sha256": digest, "manifest": plain}))
    differs, redone = (str(problem) for problem in reversed(replay(run).problems))
    assert differs.endswith("00000.safetensors: fragment 0 at version 2 is not what the replay computes")
    assert "comes out as" in redone


def test_the_folder_of_a_run_that_holds_the_syncers_will_do(run: Path) -> None:
    assert replay(run.parent).ok


def test_the_explanation_is_every_decision_with_its_reason(run: Path) -> None:
    lines = list(replay(run, explain=True).explanation)
    assert any("epoch 1 seq 1 at 0.010 s: Admit here/cpu/0 as incarnation" in line for line in lines)
    assert any("Merge fragment 0 to version 1 of here/cpu/0 (0.500, 4 steps" in line for line in lines)
    assert lines[-1].split(": ", 1)[1].startswith(("Finish", "Refuse", "Evaluate", "LearnerLeft", "Note"))
    assert all(": " in line for line in lines)


def test_a_changed_line_is_found_and_named(run: Path) -> None:
    path = first_tape(run)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[7] = lines[7].replace(b'"tokens":', b'"tokens":1')
    path.write_bytes(b"".join(lines))
    assert only_problem(replay(run)).startswith(f"{path} seq 7: the line, or one before it, was changed")
    assert any("seq 7" in line for line in replay(run, explain=True).explanation)


def test_a_decision_that_was_forged_together_with_its_hashes_is_found(run: Path) -> None:
    path, changed = first_tape(run), 0

    def forge(body: dict[str, Any]) -> None:
        nonlocal changed
        for action in body.get("actions", []):
            if action["type"] == "Merge" and not changed:
                action["members"][0]["weight"] = 0.75
                changed = body["seq"]

    rewrite((path,), forge)
    assert only_problem(replay(run)).startswith(f"{path} seq {changed}: action ")


@pytest.fixture
def short(tmp_path: Path) -> Path:
    """A run of some merges."""
    RecordedRun(tmp_path, recorded_job()).train(6)
    return tmp_path


def first_of(
    kind: str, change: Callable[[dict[str, Any]], None], changed: list[int]
) -> Callable[[dict[str, Any]], None]:
    """Applies ``change`` to the first line with an event of this kind, and adds its number to ``changed``."""

    def forge(body: dict[str, Any]) -> None:
        if body.get("event", {}).get("type") == kind and not changed:
            change(body)
            changed.append(body["seq"])

    return forge


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (lambda actions: actions.clear(), 'action 1 is {.*"Admit".*}, on the tape it is nothing'),
        (lambda actions: actions.append(actions[0]), 'action 3 is nothing, on the tape it is {.*"Admit".*}'),
    ],
    ids=["taken away", "added"],
)
def test_a_decision_that_was_taken_away_or_added_is_found(
    short: Path, change: Callable[[list[Any]], None], difference: str
) -> None:
    changed: list[int] = []
    rewrite([first_tape(short)], first_of("LearnerJoined", lambda body: change(body["actions"]), changed))
    report = replay(short)
    assert re.fullmatch(f"{first_tape(short)} seq {changed[0]}: {difference}", only_problem(report))
    assert report.epochs[0].events == changed[0] - 1


def test_a_merge_that_was_not_ordered_is_found_and_not_redone(tmp_path: Path) -> None:
    recorded = RecordedRun(tmp_path, recorded_job())
    recorded.train(6)
    recorded.tell(Merged(0, 9, "0" * 32, 0.01))
    report = replay(tmp_path)
    (epoch,) = report.epochs
    assert only_problem(report) == f"{first_tape(tmp_path)} seq {epoch.events}: version 9 of fragment 0 was not ordered"
    assert epoch.merges == epoch.merges_redone + 1 > 3


def test_a_merge_with_another_result_is_found_and_none_after_it_is_redone(short: Path) -> None:
    changed: list[int] = []
    rewrite([first_tape(short)], first_of("Merged", lambda body: body["event"].update(digest="0" * 32), changed))
    report = replay(short)
    found = only_problem(report)
    assert found.startswith(f"{first_tape(short)} seq {changed[0]}: version 1 of fragment 0 comes out as ")
    assert found.endswith(f", not {'0' * 32}")
    assert (report.epochs[0].merges_redone, report.epochs[0].recorded) == (0, True)
    assert report.epochs[0].merges > 3


def test_a_changed_payload_is_named_with_the_merge_that_needs_it(run: Path) -> None:
    payload = min((run / "payloads").glob("*/*.bin"))
    payload.write_bytes(payload.read_bytes()[:-1])
    report = replay(run)
    assert re.search(rf"seq \d+: {payload}: .* bytes, not the", only_problem(report))
    assert any(epoch.merges > epoch.merges_redone for epoch in report.epochs)


def test_decisions_still_replay_where_merges_cannot_be_redone(run: Path) -> None:
    shutil.rmtree(run / "checkpoints" / "000001")
    report = replay(run)
    assert only_problem(report).startswith(f"{first_tape(run)} seq 0: merges cannot be redone without their checkpoint")
    assert report.epochs[0].merges_redone == 0
    assert report.epochs[0].events == len(list(TapeReader(find_tapes(run / "tape")[0])))


def test_a_torn_tail_is_told_and_is_no_problem(short: Path) -> None:
    path = first_tape(short)
    path.write_bytes(path.read_bytes()[:-20])
    report = replay(short, explain=True)
    assert report.ok
    torn = report.epochs[0].torn
    assert torn is not None
    assert (torn.file, torn.seq) == (path, report.epochs[0].events + 1)
    assert any("the tape ends within this line" in line for line in report.explanation)


def test_a_folder_without_a_tape_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReplayError, match="has no tape"):
        replay(tmp_path)


def test_merges_that_left_a_member_out_replay_to_the_bit(tmp_path: Path) -> None:
    recorded = RecordedRun(tmp_path, recorded_job())
    recorded.spoilt = frozenset({2, 5})
    recorded.train(30)
    spoiler = recorded.engine.view(recorded.now).learners[-1]
    assert spoiler.left_out == 2 * 4
    assert "times as large" in spoiler.left_out_reason
    report = replay(tmp_path, explain=True)
    assert report.ok, report.problems
    assert report.epochs[0].merges == report.epochs[0].merges_redone > 20
    assert sum("MemberLeftOut" in line for line in report.explanation) == 2 * 4
    assert max(values.abs().max().item() for values in recorded.parameters) < 10


def test_a_restarted_syncer_and_its_replay_know_what_is_usual(tmp_path: Path) -> None:
    before = RecordedRun(tmp_path, recorded_job())
    before.train(12)
    before.checkpoint()
    again = RecordedRun(tmp_path, recorded_job(), epoch=2)
    assert again.store.usual(0) == before.store.usual(0) != NO_PAST
    again.spoilt = frozenset(range(1, 100))
    again.spoilt_by = 8.0
    again.train(60)
    again.end()
    report = replay(tmp_path)
    assert report.ok, report.problems
    assert report.epochs[1].merges == report.epochs[1].merges_redone > 20


def test_a_tape_of_rules_that_are_not_known_is_refused_in_one_line(tmp_path: Path) -> None:
    RecordedRun(tmp_path, recorded_job()).train(2)
    rewrite([first_tape(tmp_path)], lambda body: body.get("header", {}).update(rules=99))
    report = replay(tmp_path)
    assert only_problem(report).endswith(
        "engine rules: 99 is not 1, which this version of diloco reads; use the version that wrote the tape"
    )
    (epoch,) = report.epochs
    assert (epoch.events, epoch.decisions, epoch.merges, epoch.merges_redone) == (0, 0, 0, 0)
    assert not epoch.recorded
