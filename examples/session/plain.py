"""A plain training loop."""

import torch
from torch.utils.data import DataLoader
from toy import Model, Points, held_out_loss

import diloco


def train(model: Model, learning_rate: float) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    session = diloco.session(model, optimizer, evaluate=held_out_loss)
    points = session.saved["points"] = Points(session.seed)
    with session:
        for batch in DataLoader(points, batch_size=16):
            loss = model(**{name: tensor.to(session.device) for name, tensor in batch.items()})["loss"]
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if not session.step(loss.detach()):
                break
