"""Copies of the syncer's checkpoints and of the finished model in a bucket or a folder: written, pruned, restored."""
