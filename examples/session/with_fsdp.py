"""A plain training loop in several processes, each with a part of the model (FSDP2)."""

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from toy import Model, batches, held_out_loss

import diloco


def train(model: Model, learning_rate: float) -> None:
    distributed.init_process_group()  # it finds the learner's other processes
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    fully_shard(model, mesh=init_device_mesh(next(model.parameters()).device.type, (ranks,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    session = diloco.session(model, optimizer, evaluate=held_out_loss)
    with session:
        for batch in batches(session.seed, session.steps, rank, ranks):
            loss = model(**{name: tensor.to(session.device) for name, tensor in batch.items()})["loss"]
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if not session.step(loss.detach()):
                break
    distributed.destroy_process_group()
