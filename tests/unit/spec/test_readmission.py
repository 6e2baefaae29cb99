"""The file that names given-up learners which may join again."""

from diloco.spec.readmission import Readmission, readmission_text, readmissions


def test_what_is_written_is_read() -> None:
    orders = (Readmission("east/a/0", 3, 3_000_001), Readmission("west/old-1/12", 1, 0))
    assert readmissions(readmission_text(reversed(orders))) == orders


def test_lines_of_another_form_are_ignored() -> None:
    text = "east/a/0 1 2\neast/a/1 1\n\neast/a/x 1 2\neast/a/2 -1 2\neast/a/3 1 2 3\neast/a/4 \u0661 2\n"
    assert readmissions(text) == (Readmission("east/a/0", 1, 2),)
