"""Every way a manifest can be wrong, and what ``diloco`` and an API server say of it."""

from tests.support.bad_manifests import fields, rules
from tests.support.bad_manifests.bad import SAME, Bad

__all__ = ["CASES", "SAME", "Bad"]

CASES = (*fields.CASES, *rules.CASES)
