"""``diloco evaluate``: the loss of an exported model on a job's held-out data."""

import json
import math
from pathlib import Path
from typing import Annotated

import typer

from diloco.spec import load_job


def evaluate(
    job: Annotated[Path, typer.Option("--job", help="The manifest.", show_default=False)],
    model: Annotated[Path, typer.Option("--model", help="The model file that a run exports.", show_default=False)],
    device: Annotated[str, typer.Option("--device", help="auto (cuda if available), cpu, cuda, cuda:1...")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Evaluate an exported model on the held-out sequences of a job, like the job's own evaluations.

    \b
    Example:
      diloco evaluate --job runs/mine/job.yaml --model runs/mine/model.safetensors
    """
    manifest = load_job(job)
    from diloco.learner.training.devices.device import choose_device
    from diloco.learner.training.exported import exported_loss

    result = exported_loss(manifest.spec, model, choose_device(device))
    loss, metrics = result.means
    finite = math.isfinite(loss)
    if as_json:
        document = {
            "job": manifest.metadata.name,
            "model": str(model),
            "tokens": result.info.tokens,
            "sequences": result.sequences,
            "loss": loss if finite else None,
            "metrics": {name: value if math.isfinite(value) else None for name, value in metrics.items()},
        }
        typer.echo(json.dumps(document))
        return
    means = f"loss {loss:.4f} {result.unit}" if finite else "no finite loss: the model has diverged"
    means += "".join(f", {name} {value:.4g}" for name, value in metrics.items())
    typer.echo(
        f"{model}: {means}, on {result.sequences} held-out {result.examples} of job {manifest.metadata.name}; "
        f"trained on {result.info.tokens:,} tokens"
    )
