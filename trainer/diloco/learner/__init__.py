"""A learner: trains its own copy of the model on the data it is dealt, without waiting for the network."""
