"""The same data has the same digest wherever it lies, and other data of the same size has another."""

from pathlib import Path

import numpy as np
import pytest

from diloco.learner.data import digest
from diloco.learner.data.digest import digest_of
from diloco.learner.data.mixture import Mixture
from diloco.learner.data.opening import open_task
from diloco.learner.data.text import ByteText, open_text
from diloco.learner.data.tokenfile import open_token_file, write_token_file
from diloco.spec.training import TextData
from tests.support.small_job import small_job


def corpus(folder: Path, **files: str) -> ByteText:
    folder.mkdir()
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text)
    return open_text(TextData(path=str(folder)))


def test_copies_of_a_folder_have_one_digest(tmp_path: Path) -> None:
    one, other = (corpus(tmp_path / name, a="to be", b="or not") for name in ("one", "other"))
    assert digest_of(one) == digest_of(other)


@pytest.mark.parametrize("files", [{"a": "to be", "b": "or now"}, {"a": "to be", "c": "or not", "b": "to be"}])
def test_other_files_have_another(tmp_path: Path, files: dict[str, str]) -> None:
    one = corpus(tmp_path / "one", a="to be", b="or not")
    assert digest_of(one) != digest_of(corpus(tmp_path / "other", **files))


def test_of_a_large_source_places_up_to_its_end_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "_PLACES", 4)
    monkeypatch.setattr(digest, "_TOKENS", 8)
    texts = ["x" * 1000, "x" * 999 + "y", "y" + "x" * 999, "x" * 500 + "y" * 500]
    made = {digest_of(corpus(tmp_path / str(number), a=text)) for number, text in enumerate(texts)}
    assert len(made) == len(texts)


def test_a_token_file_and_a_mixture_have_that_of_every_token(tmp_path: Path) -> None:
    tokens = np.arange(50_000) % 250
    changed = tokens.copy()
    changed[12_345] += 1
    files = []
    for name, values in (("one", tokens), ("other", changed)):
        write_token_file(tmp_path / name, [values], 256, "bytes")
        files.append(open_token_file(tmp_path / name))
    assert digest_of(files[0]) == files[0].info.digest != digest_of(files[1])
    mixed = [digest_of(Mixture([file, files[0]], [1.0, 1.0], 0.1)) for file in files]
    assert mixed[0] != mixed[1]


def test_the_digest_of_a_job_is_that_of_its_tokens(tmp_path: Path) -> None:
    text = corpus(tmp_path / "text", a="to be or not to be")
    assert open_task(small_job(data={"text": {"path": str(tmp_path / "text")}})).digest() == digest_of(text)
