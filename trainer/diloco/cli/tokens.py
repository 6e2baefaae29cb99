"""``diloco tokens``: makes the memory-mapped token files that ``data.tokens`` reads."""

from pathlib import Path
from typing import Annotated

import typer

from diloco.spec.training import TextData


def tokens(
    source: Annotated[
        Path | None,
        typer.Argument(metavar="[TEXT]", help="A file or folder. Default: the standard library of this Python."),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Token file to write.", show_default=False)
    ] = ...,  # type: ignore[assignment]  # typer's way to require a flag after an optional argument
    include: Annotated[
        list[str] | None,
        typer.Option(
            "--include", metavar="PATTERN", help="Pattern of file names to read inside a folder. May be repeated."
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer",
            metavar="MODULE:FACTORY",
            help="Your tokenizer: returns an object with name, vocabulary_size, end_of_document and encode. Default: "
            "bytes.",
        ),
    ] = None,
) -> None:
    """Make a token file from text. Training reads it through the page cache, so it may be larger than memory.

    \b
    Examples:
      diloco tokens book.txt --output book.tokens
      diloco tokens src --include '*.py' --include '*.md' --output code.tokens
      diloco tokens corpus --tokenizer mypackage.words:make --output corpus.tokens
    """
    from diloco.learner.data import make_token_file, open_tokenizer

    if source is not None and not source.exists():
        raise typer.BadParameter(f"TEXT: {source} does not exist; use a file or a folder")
    patterns = {"include": tuple(include)} if include else {}
    text = TextData.model_validate({"path": None if source is None else str(source), **patterns})
    info = make_token_file(text, output, None if tokenizer is None else open_tokenizer(tokenizer))
    typer.echo(
        f"{output}: {info.count:,} tokens of a vocabulary of {info.vocabulary_size:,}, {info.data_bytes / 1e6:.1f} MB. "
        f"Use it with data: {{tokens: {{path: {output}}}}} and model.builtin.vocabularySize: {info.vocabulary_size}"
    )
