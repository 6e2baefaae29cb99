"""Leases: which process acts, and which operator acts in a namespace."""
