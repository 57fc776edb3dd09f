"""Rules for operators, one module per kind of footprint; importing them registers the rules."""

from . import pointwise, rows, shapes, windows

__all__ = ['pointwise', 'rows', 'shapes', 'windows']
