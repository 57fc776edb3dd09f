"""The papers' figures, drawn from the records of runs alone, as PNG and SVG."""

from .methods import draw_comparison
from .run import draw_run

__all__ = ['draw_comparison', 'draw_run']
