"""Decoupled DiLoCo: train one model on clusters or regions that fail, differ in speed and are far apart.

None of them waits for another.
"""

__version__ = "0.1.0"
