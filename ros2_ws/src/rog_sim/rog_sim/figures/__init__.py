"""Draws figures of runs and comparisons, in the style of the papers, from records alone."""

from .methods import draw_comparison
from .run import draw_run

__all__ = ['draw_comparison', 'draw_run']
