"""How much of what all tenants share one of them may take.

A tenant takes one more while it holds less than twice of what is free. One alone gets two thirds, two get two fifths
each, and a tenant that has nothing finds something free. No number of tenants has to be known.
"""


def may_take_more(held: float, free: float) -> bool:
    """Whether a tenant that holds this much may take more of what is free."""
    return held < 2 * free
