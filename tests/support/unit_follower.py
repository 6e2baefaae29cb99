"""A process of a learner of several, for tests: it follows the test's process through one job after the other."""

import json
import sys
from contextlib import suppress
from pathlib import Path

import torch

from diloco.core.fragments import LayoutError
from diloco.learner.data import DataError
from diloco.learner.training.optimizer import OptimizerError
from diloco.learner.unit.checkpoints import RankCheckpoints
from diloco.learner.unit.follower import follow
from diloco.model import ModelError
from tests.support.units import heard, held_bytes, rank_of, world_of

if __name__ == "__main__":
    torch.set_num_threads(1)
    world = world_of(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    while job := heard(world):
        with suppress(DataError, LayoutError, ModelError, OptimizerError):
            rank = rank_of(json.loads(job), world, None)
            follow(rank, RankCheckpoints(Path(sys.argv[1]).parent, rank.inner, world, world.ranks))
            held_bytes(world)
    world.leave()
