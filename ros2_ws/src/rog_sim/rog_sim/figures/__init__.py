"""Draws figures like those in the papers, as PNG and SVG; it needs only the records of runs."""

from .methods import draw_comparison
from .run import draw_run

__all__ = ['draw_comparison', 'draw_run']
