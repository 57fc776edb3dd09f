"""Rules for operators, by kind of footprint; importing this package registers them all."""

from . import pointwise, rows, shapes, windows

__all__ = ['pointwise', 'rows', 'shapes', 'windows']
