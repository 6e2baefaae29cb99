"""The syncer process: connects the engine to gRPC, tensors and disk. Start it with ``run_syncer``."""
