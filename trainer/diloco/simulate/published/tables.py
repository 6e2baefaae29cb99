"""The published tables, as printed. Nothing here is calculated."""

from typing import Final

CHIPS: Final = (150_000, 300_000, 600_000, 1_200_000, 2_400_000)
"""Columns of the table of goodput."""
DATA_PARALLEL: Final = (72, 57, 38, 27, 18)
ELASTIC: Final = (88, 80, 69, 58, 40)
DECOUPLED: Final = {
    2: (94, 88, 80, 70, 54),
    4: (96, 93, 89, 82, 73),
    8: (98, 96, 94, 88, 80),
    16: (99, 98, 96, 93, 86),
}
"""By learners. Share of time that chips compute, in percent; a chip is interrupted once a year (arXiv 2604.21428)."""
UPTIME: Final = {8: 100.0, 16: 100.0}
"""By learners: share of time that at least one computes, in percent (arXiv 2604.21428)."""

UTILIZATIONS: Final = (0.5, 0.8, 0.9, 0.95, 0.99)
"""Columns of the table of bandwidth."""
BANDWIDTH: Final = {
    "data-parallel": {
        "1B": (86.8, 152.6, 184.2, 222.3, 569.0),
        "10B": (104.8, 222.3, 222.3, 268.3, 471.5),
        "100B": (184.2, 323.8, 390.7, 390.7, 471.5),
    },
    "DiLoCo": {
        "1B": (1.4, 6.2, 13.3, 23.3, 86.8),
        "10B": (1.7, 7.5, 16.0, 33.9, 104.8),
        "100B": (3.0, 11.0, 23.3, 49.4, 184.2),
    },
    "streaming": {
        "1B": (1.4, 5.2, 9.1, 16.0, 28.1),
        "10B": (1.7, 5.2, 9.1, 13.3, 19.3),
        "100B": (2.4, 6.2, 9.1, 11.0, 19.3),
    },
    "streaming, overlap": {
        "1B": (1.4, 4.3, 6.2, 9.1, 11.0),
        "10B": (1.7, 3.6, 5.2, 6.2, 7.5),
        "100B": (1.7, 3.6, 4.3, 5.2, 5.2),
    },
    "streaming, overlap, FP4": {
        "1B": (0.4, 0.9, 1.7, 2.0, 3.0),
        "10B": (0.4, 0.9, 1.4, 1.4, 1.7),
        "100B": (0.5, 0.9, 1.1, 1.1, 1.4),
    },
}
"""By method and model: Gbit/s for each utilization of the accelerators (arXiv 2501.18512)."""

EIGHT_PLACES: Final = (198.0, 0.84)
"""Gbit/s between eight places, data-parallel and decoupled (announcement of April 2026)."""
TWO_PLACES: Final = (104.0, 1.7)
"""The same of a model of 5B parameters."""
FASTER: Final = 20.0
"""A model of 12B over four regions, links of 2 to 5 Gbit/s: at least so many times faster than blocking."""
MIXED: Final = 84.0
"""Goodput in percent if all of eight learners of two generations are waited for: 18 % between them, 10 % variance."""
SCAVENGED: Final = {0.25: 0.90, 0.5: 0.83, 1.0: 0.75, 3.0: 0.62}
"""By capacity added for a while, over the usual one: wall clock of decoupled training over that without it."""
