"""What the syncer writes: checkpoints, payloads for a replay, the finished model."""
