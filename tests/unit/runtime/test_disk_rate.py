from pathlib import Path

from diloco.runtime.disk_rate import longest_write_seconds, newest_bytes


def test_only_a_large_write_has_longer_than_the_least() -> None:
    assert [longest_write_seconds(size, 60.0) for size in (0, 3e9, 560e9)] == [60.0, 60.0, 11_200.0]


def test_the_newest_checkpoint_has_the_highest_number(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    sizes = [newest_bytes(checkpoints)]
    for name in ("999999", "1000000", ".1000001.part", "1000002.broken"):
        (checkpoints / name).mkdir(parents=True)
        for file in ("a", "b"):
            (checkpoints / name / file).write_bytes(bytes(int(name.strip(".partboken"))))
        sizes.append(newest_bytes(checkpoints))
    assert sizes == [0, 2 * 999_999, 2_000_000, 2_000_000, 2_000_000]
