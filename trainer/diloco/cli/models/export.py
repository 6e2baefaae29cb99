"""``diloco export``: the trained model as a folder for the transformers package."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diloco.spec import load_job

if TYPE_CHECKING:
    from torch import nn

    from diloco.spec.training import ModelSpec


def export(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="The folder of a run or of a checkpoint, or an exported file.", show_default=False
        ),
    ],
    hf: Annotated[Path, typer.Option("--hf", metavar="DIR", help="Folder to write.", show_default=False)],
    job: Annotated[
        Path | None,
        typer.Option("--job", metavar="FILE", help="The manifest. Default: job.yaml of the run.", show_default=False),
    ] = None,
) -> None:
    """Write a trained model of Hugging Face's format as a folder that transformers loads.

    While a run goes on, its newest checkpoint is taken. With adapters it is a
    folder that peft loads.

    \b
    Examples:
      diloco export runs/mine --hf trained
      diloco export model.safetensors --job job.yaml --hf trained
    """
    from diloco.model import ModelError
    from diloco.model.huggingface.export import check_target, write_folder

    check_target(hf)
    module, model = _trained(run, job)
    if model.huggingface is None:
        raise ModelError(f"RUN: {run} has the model {model.name}; use a run of a job with model.huggingface")
    write_folder(module, model.huggingface, hf)
    typer.echo(f"{hf}: written; load it with {'peft' if model.adapter else 'transformers'}")


def _trained(run: Path, job: Path | None) -> tuple["nn.Module", "ModelSpec"]:
    from diloco.model import ModelError, load_model

    beside = (run, run.absolute().parent, run.absolute().parent.parent.parent)  # of a run, its file, its checkpoint
    found = job or next((path for folder in beside if (path := folder / "job.yaml").is_file()), None)
    manifest = None if found is None else load_job(found)
    file = run / "model.safetensors" if run.is_dir() else run
    if file.is_file():
        given = None if manifest is None else manifest.spec.model
        loaded = load_model(file, given)
        return loaded.module, given or loaded.info.model
    if manifest is None:
        raise ModelError(f"RUN: {run} has no model.safetensors, and no job.yaml; use the folder of a run, or --job")
    from diloco.syncer.disk.exporter import model_of_checkpoint

    return model_of_checkpoint(manifest, run), manifest.spec.model
