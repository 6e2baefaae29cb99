"""Decoupled DiLoCo: one model trained across islands of compute that never wait for one another."""

__version__ = "0.1.0"
