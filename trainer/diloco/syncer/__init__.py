"""The syncer: engine, gRPC, tensors and disk put together to one process.

The engine decides; everything here carries out. ``run_syncer`` is the way in.
"""
