"""A learner: trains its own copy of the model on its own shard of the data, without waiting for the network."""
