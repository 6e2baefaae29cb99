"""A learner: trains its own copy of the model on its own shard of the data and never waits for the network.

It must not know the syncer's code; the two meet on the wire.
"""
