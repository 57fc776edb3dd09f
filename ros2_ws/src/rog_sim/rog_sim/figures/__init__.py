"""The papers' figures, drawn from the records of runs alone, as PNG and SVG."""

from .methods import draw_comparison
from .run import draw_run
from .studies import draw_study

__all__ = ['draw_comparison', 'draw_run', 'draw_study']
