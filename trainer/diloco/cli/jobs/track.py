"""``diloco track``: a run's curves for TensorBoard, and for what reads its files."""

import time
from pathlib import Path
from typing import Annotated

import typer

from diloco.cli.live.local_runs import run_directory
from diloco.local.directory import RunDirectory
from diloco.spec.status.curves import FILE
from diloco.syncer.tracking.curve_reader import CurveReader, points

_POLL_SECONDS = 2.0


class TrackError(ValueError):
    """The curves cannot be written; the text says what is missing."""


def track(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of a run.", show_default=False)],
    tensorboard: Annotated[
        Path, typer.Option("--tensorboard", metavar="FOLDER", help="Folder for event files.", show_default=False)
    ],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends, or Ctrl-C.")] = False,
) -> None:
    """Write a run's curves as TensorBoard's event files: losses, learning rates, gradient norms, speed, agreement.

    The x axis is merged tokens. The source is DIR/syncer/curves.jsonl, one JSON
    object a line, for other tools; Weights & Biases takes
    the folder with 'wandb sync FOLDER'.

    \b
    Examples:
      diloco track runs/mine --tensorboard boards/mine
      diloco track runs/mine --tensorboard boards/mine --follow
    """
    run = RunDirectory(run_directory(directory))
    try:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        needed = "--tensorboard: needs the package tensorboard; run pip install '.[track]' in a clone"
        raise TrackError(needed) from error
    reader, written, epoch = CurveReader(run.syncer / FILE), 0, 0
    with SummaryWriter(str(tensorboard)) as writer:
        while True:
            over = not follow or run.summary.exists()
            for row in reader.rows():
                if epoch and row.epoch != epoch:  # a restarted syncer merges again what came after its checkpoint
                    replaced = Event(session_log=SessionLog(status=SessionLog.START))
                    writer.file_writer.add_event(replaced, int(row.merged_tokens), row.unix_seconds)
                epoch = row.epoch
                for name, value in points(row):
                    writer.add_scalar(name, value, int(row.merged_tokens), row.unix_seconds)
                written += 1
            writer.flush()
            if over:
                break
            time.sleep(_POLL_SECONDS)
    if not written:
        raise TrackError(f"{run.syncer / FILE}: has no curves yet")
    typer.echo(f"{tensorboard}: {written} points of each curve")
