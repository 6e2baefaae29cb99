"""The published figures of decoupled training, and what the simulation makes of each.

Every figure comes from one set of parameters, in these modules. What is fitted or inferred is said where it stands.
"""
