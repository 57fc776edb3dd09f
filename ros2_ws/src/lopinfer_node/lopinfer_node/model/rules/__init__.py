"""Rules for operators, one module for each kind of footprint; the import registers all rules."""

from . import pointwise, rows, shapes, windows

__all__ = ['pointwise', 'rows', 'shapes', 'windows']
