"""Counts what a model computes and holds, in passes that compute shapes alone."""
