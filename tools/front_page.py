"""Writes docs/images/fades.png: robots that train together over links that fade, by two methods.

Runs the fleet file `outdoor` in virtual time with two methods, and draws the links and what each
robot does:

    python tools/front_page.py
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use('Agg')
import matplotlib.pyplot as plt
import numpy as np
from fleet_env.settings.fleet_file import link_trace, read_fleet
from matplotlib.patches import Patch

IMAGE = Path(__file__).parent.parent / 'docs/images/fades.png'
METHODS = {'rsp:20+pipeline+sparse': 'ROG', 'bsp': 'Lock-step (bsp)'}
PARTS = {'compute_s': ('computes', '#4c9f70'), 'communicate_s': ('sends, receives', '#5b8db8'),
         'stall_s': ('waits for others', '#d1603d')}
COLOURS = ('#1f77b4', '#ff7f0e', '#2ca02c')


def run(method: str, folder: Path) -> list[dict[str, Any]]:
    """Return the record of a run in virtual time."""
    subprocess.run([Path(sys.executable).parent / 'rog', 'sim', 'outdoor', '--sync', method,
                    '--out', folder], check=True, stdout=subprocess.DEVNULL)
    return [json.loads(line) for line in (folder / 'run.jsonl').read_text().splitlines()]


def main() -> None:
    """Run both methods and write the picture."""
    with tempfile.TemporaryDirectory() as name:
        records = {title: run(method, Path(name, title.split()[0]))
                   for method, title in METHODS.items()}
        fleet = read_fleet(Path(name, 'ROG', 'fleet.yaml'))
    figure, axes = plt.subplots(3, 1, figsize=(9, 5.2), sharex=True, layout='constrained',
                                gridspec_kw={'height_ratios': [1.1, 1, 1]})
    robots = records['ROG'][0]['robots']
    axes[0].set_title('Their links, Mbit/s', loc='left', fontsize=10)
    times = np.arange(0.5, 60, 0.5)
    for robot, colour in zip(fleet.robots, COLOURS, strict=True):
        trace = link_trace(robot.link)
        rates = [trace.rate_at(np.linspace(t - 0.5, t + 0.5, 50)).mean() for t in times]
        axes[0].plot(times, rates, color=colour, lw=1.3, label=robot.name)
    axes[0].legend(loc='upper right', ncols=3, frameon=False, fontsize=8)
    for axis, (title, record) in zip(axes[1:], records.items(), strict=True):
        final = max(r['t'] for r in record if r['kind'] == 'evaluation')
        metric = [r['metric'] for r in record if r['kind'] == 'evaluation' and r['t'] == final]
        count = sum(r['kind'] == 'iteration' for r in record)
        axis.set_title(f'{title}: {count} gradients in a minute, accuracy 54 -> '
                       f'{100 * sum(metric) / len(metric):.0f} %', loc='left', fontsize=10)
        for place, robot in enumerate(robots):
            draw(axis, -place, [r for r in record
                                if r['kind'] == 'iteration' and r['robot'] == robot])
        axis.set_yticks([-k for k in range(len(robots))], robots, fontsize=8)
        axis.tick_params(length=0)
    axes[1].legend(handles=[Patch(color=colour, label=label) for label, colour in PARTS.values()],
                   loc='lower right', bbox_to_anchor=(1, 1), ncols=3, frameon=False, fontsize=8)
    axes[2].set_xlabel('time, s', fontsize=9)
    axes[2].set_xlim(0, 60)
    for axis in axes:
        axis.spines[['top', 'right']].set_visible(False)
    figure.savefig(IMAGE, dpi=150)
    print(f'written: {IMAGE} ({IMAGE.stat().st_size / 1e3:.0f} kB)')


def draw(axis: Any, height: float, rows: list[dict[str, Any]]) -> None:
    """Draw the parts of a robot's iterations, each in their order, as one band."""
    for at, (part, (_, colour)) in enumerate(PARTS.items()):
        before = list(PARTS)[:at]
        spans = [(r['t'] - sum(r[p] for p in PARTS) + sum(r[p] for p in before), r[part])
                 for r in rows if r[part] > 0]
        axis.broken_barh(spans, (height - 0.38, 0.76), color=colour, lw=0)


if __name__ == '__main__':
    main()
