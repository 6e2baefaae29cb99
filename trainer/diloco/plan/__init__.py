"""Computes whether a job and its links fit together, before anything runs: ``diloco plan``."""
