"""Arithmetic on fragments: encoding, merging, the outer optimizer."""
