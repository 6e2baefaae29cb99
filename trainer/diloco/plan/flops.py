"""What a job's devices compute, from the operations that a token takes. Pure."""

from collections.abc import Mapping

from diloco.plan.situation import Situation
from diloco.spec.placement import Pool


def device_flops_per_second(situation: Situation, pools: Mapping[str, Pool], flops_of_token: int) -> dict[str, float]:
    """Operations a second of each device of a pool, where the duration of a step is known. Of matrix products."""
    return {
        group.name: flops_of_token * group.tokens_per_step / (group.step_seconds * pools[group.name].ranks)
        for group in situation.groups
        if group.step_seconds
    }
