"""Formats a comparison as tables: aligned text for a terminal, Markdown for documents."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from .comparison import Comparison, MethodResult, Spread

Row = list[str]

SMALL = 10_000  # if an iteration transfers fewer bytes than this, the table shows kB instead of MB
LEGEND = '''\
target: accuracy of "s to target" and "J to target": --target, or the highest that all runs reach
stability: ln of the standard deviation of the accuracies in the second half; smaller is steadier
fluctuation: the same of the differences between successive accuracies, without the rise'''


def text_tables(comparison: Comparison) -> str:
    """Return the comparison as aligned plain text of at most about 100 columns."""
    tables = [f'{title}\n{aligned(rows)}' for title, rows in _tables(comparison)]
    return '\n\n'.join([*tables, LEGEND])


def markdown_tables(comparison: Comparison) -> str:
    """Return the comparison as Markdown tables."""
    tables = [f'{title}\n\n{markdown(rows)}' for title, rows in _tables(comparison)]
    return '\n'.join([*tables, *(f'- {line}\n' for line in LEGEND.splitlines())])


def spread(value: Spread, scale: float = 1.0, digits: int | None = None) -> str:
    """Return mean ± standard deviation of ``value``, multiplied by ``scale``; ``-`` if undefined.

    :param digits: digits after the decimal point; default: up to three, so that the mean has three
        significant digits.
    """
    mean, std = value.mean * scale, value.std * scale
    if not math.isfinite(mean):
        return '-'
    if digits is None:
        digits = min(max(0, 2 - math.floor(math.log10(abs(mean)))), 3) if mean else 0
    return f'{mean:.{digits}f}' + (f' ± {std:.{digits}f}' if math.isfinite(std) else '')


def _tables(comparison: Comparison) -> list[tuple[str, list[Row]]]:
    c = comparison
    runs = f'{c.robots} robots, {c.duration_s / 60:g} min, ' \
           f'{len(c.seeds)} seed{"s" if len(c.seeds) > 1 else ""}'
    small = any(m.iteration_bytes.mean < SMALL for m in c.methods)
    amount, factor = ('kB/iteration', 1e-3) if small else ('MB/iteration', 1e-6)
    time: dict[str, Callable[[MethodResult], str]] = {
        'method': lambda m: m.sync,
        'iterations': lambda m: spread(m.iterations),
        's/iteration': lambda m: spread(m.iteration_s),
        'compute': lambda m: spread(Spread(m.compute_s.mean)),
        'communicate': lambda m: spread(Spread(m.communicate_s.mean)),
        'stall': lambda m: spread(Spread(m.stall_s.mean)),
        'stall %': lambda m: spread(m.stall_share, 100, 1),
        'rows %': lambda m: spread(Spread(m.rows_share.mean), 100, 0),
        amount: lambda m: spread(Spread(m.iteration_bytes.mean), factor)}
    outcome: dict[str, Callable[[MethodResult], str]] = {'method': lambda m: m.sync}
    for index, t in enumerate(c.times):
        outcome[f'% at {_moment(t)}'] = partial(_accuracy, index)
    outcome |= {
        '% at the end': lambda m: spread(m.accuracy_end, 100, 1),
        'peak %': lambda m: spread(m.accuracy_peak, 100, 1),
        'stability': lambda m: spread(m.stability, 1, 2),
        'fluctuation': lambda m: spread(m.fluctuation, 1, 2),
        's to target': lambda m: _reached(m, m.target_s, len(m.runs)),
        'J to target': lambda m: _reached(m, m.target_j, len(m.runs)),
        'J in all': lambda m: spread(m.energy_j)}
    target = f', target {100 * c.target:.1f} %' if math.isfinite(c.target) else ''
    return [(f'{c.fleet}: {runs}. Seconds of an iteration, per robot', _rows(time, c)),
            (f'Accuracy in %{target}; energy per robot', _rows(outcome, c))]


def _rows(columns: dict[str, Callable[[MethodResult], str]], comparison: Comparison) -> list[Row]:
    return [list(columns), *([cell(m) for cell in columns.values()] for m in comparison.methods)]


def _accuracy(index: int, method: MethodResult) -> str:
    return spread(method.accuracy_at[index], 100, 1)


def _reached(method: MethodResult, value: Spread, runs: int) -> str:
    share = '' if method.reached in (0, runs) else f' ({method.reached} of {runs})'
    return ('never' if not method.reached else spread(value)) + share


def _moment(seconds: float) -> str:
    return f'{seconds / 60:g} min' if seconds >= 120 else f'{seconds:g} s'


def aligned(rows: list[Row]) -> str:
    """Return the rows as text with aligned columns; the first row is the heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ['  '.join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in
                                                   zip(row[1:], widths[1:], strict=True))])
             for row in rows]
    return '\n'.join([lines[0], '  '.join('-' * width for width in widths), *lines[1:]])


def markdown(rows: list[Row]) -> str:
    """Return the rows as a Markdown table; the first row is the heading."""
    rule = ['---', *['---:'] * (len(rows[0]) - 1)]
    return ''.join(f'| {" | ".join(row)} |\n' for row in [rows[0], rule, *rows[1:]])
