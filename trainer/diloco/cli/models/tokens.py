"""``diloco tokens``: makes the memory-mapped token files that ``data.tokens`` reads."""

import logging
import sys
from glob import has_magic
from pathlib import Path
from typing import Annotated

import typer

from diloco.spec.training import DocumentsData, TextData


def tokens(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[TEXT]",
            help="A file, folder or pattern such as '/corpus/*.parquet'. Default: the standard library of this Python.",
        ),
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
    column: Annotated[
        str | None,
        typer.Option(
            "--column",
            metavar="NAME",
            help="Read documents: the text of this column or key of Parquet, JSON lines or a folder of datasets. "
            "Default for such a file: text.",
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer",
            metavar="FOLDER|MODULE:FACTORY",
            help="A folder with tokenizer.json, or your tokenizer: returns an object with name, vocabulary_size, "
            "end_of_document and encode. Default: bytes.",
        ),
    ] = None,
) -> None:
    """Make a token file from text. Training reads it through the page cache, so it may be larger than memory.

    \b
    Examples:
      diloco tokens book.txt --output book.tokens
      diloco tokens src --include '*.py' --include '*.md' --output code.tokens
      diloco tokens '/corpus/*.parquet' --column text --tokenizer /models/qwen3 --output corpus.tokens
    """
    from diloco.learner.data import make_token_file
    from diloco.learner.data.documents.formats import is_documents
    from diloco.learner.data.token_file_maker import at_most_every
    from diloco.learner.data.tokenizer import open_tokenizer

    chosen: TextData | DocumentsData
    if source is not None and (column is not None or has_magic(source) or is_documents(source)):
        if include:
            raise typer.BadParameter("--include: has no use with documents; use a pattern such as 'corpus/*.jsonl'")
        chosen = DocumentsData(path=source, column=column)
    elif source is not None and not Path(source).exists():
        raise typer.BadParameter(f"TEXT: {source} does not exist; use a file or a folder")
    else:
        patterns = {"include": tuple(include)} if include else {}
        chosen = TextData.model_validate({"path": source, **patterns})
    shown = sys.stderr.isatty()
    clear = "\r\x1b[K" if shown else ""
    told = logging.Handler()
    told.emit = lambda record: typer.echo(f"{clear}{record.getMessage()}", err=True)  # type: ignore[method-assign]  # short
    log = logging.getLogger("diloco.learner.data")
    log.setLevel(logging.INFO)
    log.addHandler(told)
    try:
        info = make_token_file(
            chosen,
            output,
            None if tokenizer is None else open_tokenizer(tokenizer),
            at_most_every(1, lambda now: typer.echo(f"{clear}{now}", nl=False, err=True) if shown else None),
        )
    finally:
        log.removeHandler(told)
        typer.echo(clear, nl=False, err=True)
    typer.echo(
        f"{output}: {info.count:,} tokens of a vocabulary of {info.vocabulary_size:,}, {info.data_bytes / 1e6:.1f} MB. "
        f"Use it with data: {{tokens: {{path: {output}}}}} and model.builtin.vocabularySize: {info.vocabulary_size}"
    )
