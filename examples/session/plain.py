"""A plain training loop."""

import torch
from toy import Model, batches, held_out_loss

import diloco


def train(model: Model, learning_rate: float) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    session = diloco.session(model, optimizer, evaluate=held_out_loss)
    with session:
        for batch in batches(session.seed, session.steps):
            loss = model(**{name: tensor.to(session.device) for name, tensor in batch.items()})["loss"]
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if not session.step(loss.detach()):
                break
