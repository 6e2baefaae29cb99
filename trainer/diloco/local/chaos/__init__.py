"""Fault injection: which faults, when, and how."""
