"""Draws figures of runs and comparisons, like the papers' figures, from the records alone."""

from .methods import draw_comparison
from .run import draw_run

__all__ = ['draw_comparison', 'draw_run']
