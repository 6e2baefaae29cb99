"""Formats numbers for people. Pure."""

import math


def bytes_text(count: float) -> str:
    """``1.5 MB``: decimal units, three digits."""
    return _scaled(count, ("B", "kB", "MB", "GB", "TB", "PB"))


def count_text(count: float) -> str:
    """``1.5 M``, as for tokens and parameters."""
    return _scaled(count, ("", "k", "M", "G", "T", "P")).rstrip()


def duration_text(seconds: float) -> str:
    """``12s``, ``3m05s``, ``2h07m``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def short_duration_text(seconds: float) -> str:
    """``364 ms``, ``2.38 s``, from 100 s on as ``duration_text``."""
    if seconds >= 99.5:
        return duration_text(seconds)
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def loss_text(loss: float | None) -> str:
    """Three decimals, or a dash where there is none yet."""
    return "-" if loss is None or not math.isfinite(loss) else f"{loss:.3f}"


def percent_text(share: float | None) -> str:
    """``97.5 %``, or a dash."""
    return "-" if share is None else f"{share:.1%}".replace("%", " %")


def _scaled(value: float, units: tuple[str, ...]) -> str:
    size = abs(value)
    for unit in units:
        if size < 999.5 or unit == units[-1]:
            digits = 0 if unit == units[0] or size >= 99.95 else 1 if size >= 9.995 else 2
            return f"{math.copysign(size, value):.{digits}f} {unit}"
        size /= 1000
    raise AssertionError
