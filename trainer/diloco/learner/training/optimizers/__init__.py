"""The inner optimizers, and their state as tensors by name."""
