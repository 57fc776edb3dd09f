"""`rog plot`: a picture of a run, from its records alone."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fleet_env.records import Evaluation, Event, Fault, Iteration, read_run
from fleet_env.summary import read_summary


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Declare the verb and its options."""
    parser = verbs.add_parser('plot', help='draw the figures of a run')
    parser.add_argument('directory', type=Path, help='directory of run.jsonl and summary.json')
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    for path in draw(options.directory):
        print(path)
    return 0


def draw(directory: Path) -> list[Path]:
    """Write run.png and run.svg into the directory; returns their paths."""
    import matplotlib
    matplotlib.use('Agg')
    import matplotlib.pyplot as plt

    events, summary = read_run(directory), read_summary(directory)
    robots = sorted(summary.robots)
    figure, axes = plt.subplots(4, 1, figsize=(7, 9.5), layout='constrained',
                                height_ratios=[1.3, 1, 1, .9])
    figure.suptitle(f'{summary.fleet or "fleet"}: {summary.sync}, seed {summary.seed}')
    for axis in axes[1:3]:
        axis.sharex(axes[0])
    for index, robot in enumerate(robots):
        color = f'C{index}'
        measured = _of(events, Evaluation, robot)
        axes[0].plot([0, *(e.t for e in measured)],
                     [100 * m for m in (summary.robots[robot].accuracy.before,
                                        *(e.metric for e in measured))],
                     marker='.', lw=1, color=color, label=robot)
        steps = _of(events, Iteration, robot)
        axes[1].plot([e.t for e in steps], [e.link_rate for e in steps], color=color, lw=1)
        axes[2].plot([e.t for e in steps],
                     [100 * e.rows_pushed / max(e.rows_total, 1) for e in steps], color=color, lw=1)
    accuracy = summary.robots[robots[0]].accuracy if robots else None
    if accuracy is not None:
        for value, text in ((accuracy.clean, 'before the shift'), (accuracy.before, 'after it')):
            axes[0].axhline(100 * value, color='gray', ls=':', lw=1)
            axes[0].annotate(text, (1, 100 * value), xycoords=('axes fraction', 'data'),
                             xytext=(-2, 2), textcoords='offset points', fontsize=8, color='gray',
                             ha='right')
    for fault in (e for e in events if isinstance(e, Fault)):
        axes[0].axvline(fault.t, color='red', lw=.8, ls='--')
        axes[0].annotate(f'{fault.robot} {fault.what}', (fault.t, 0), rotation=90, fontsize=7,
                         xycoords=('data', 'axes fraction'), color='red', ha='right', va='bottom')
    axes[0].set_ylabel('accuracy, %')
    axes[0].set_ylim(top=105)
    axes[0].legend(loc='center right', fontsize=8)
    axes[1].set_ylabel('link, Mbit/s')
    axes[2].set_ylabel('rows in a push, %')
    axes[2].set_ylim(0, 105)
    axes[2].set_xlabel('time, s')
    _time_shares(axes[3], summary, robots)
    paths = [directory / 'run.png', directory / 'run.svg']
    for path in paths:
        figure.savefig(path, dpi=150)
    plt.close(figure)
    return paths


def _of(events: list[Event], kind: type, robot: str) -> list[Any]:
    return [e for e in events if isinstance(e, kind) and e.robot == robot]


def _time_shares(axis: Any, summary: Any, robots: list[str]) -> None:
    """Seconds per iteration that computing, communicating and stalling take (ROG, figure 1)."""
    left = [0.0] * len(robots)
    for name, field in (('compute', 'compute_s'), ('communicate', 'communicate_s'),
                        ('stall', 'stall_s')):
        values = [getattr(summary.robots[r], field) / max(summary.robots[r].iterations, 1)
                  for r in robots]
        axis.barh(robots, values, left=left, label=name,
                  color={'compute': 'C2', 'communicate': 'C0', 'stall': 'C3'}[name])
        left = [a + b for a, b in zip(left, values, strict=True)]
    axis.invert_yaxis()
    axis.set_xlabel('s per iteration')
    axis.legend(fontsize=8, ncols=3, loc='lower right', bbox_to_anchor=(1, 1), frameon=False)
