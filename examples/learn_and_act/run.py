"""Two arms learn from each other while they act: `python examples/learn_and_act/run.py`.

Each arm has demonstrations of its own half of the table, and gets a new one every two seconds. A
fleet trains one model on both arms' demonstrations, over an outdoor link that fails for half a
minute. Each arm reaches for targets on the whole table all the time, with the newest version of the
model that has come over its link. It takes two minutes, and Ctrl+C ends it.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import arm
import numpy as np
import torch
from fleet_env.emulated.shaped import ShapedLink
from fleet_env.plot_style import COLUMN, new_figure, styled
from fleet_env.records.events import Iteration, read_run
from fleet_env.settings.fleet_file import link_trace, load_fleet
from fleet_models import Following, FollowOptions
from fleet_ros.environment import dds_environment

HERE = Path(__file__).parent
BEGIN, EVERY, TESTS = 20, 2.0, 30    # demonstrations at first; s between two more; test episodes
OUTAGE = 25, 55                      # s, of outdoor_outage.txt
PLACES = 400                         # targets that measure a version


class Arm(threading.Thread):
    """An arm that reaches for targets until it is stopped.

    ``reached``: (time in s, whether it succeeded) of each reach. ``taken``: (time in s, version,
    share of `PLACES` that it reaches) of each version, after version 0, the model without training.
    """

    def __init__(self, rank, name, trace, server, seed, started):
        super().__init__(name=name, daemon=True)
        self.dice = np.random.default_rng([seed, rank, 1])
        self.places = arm.targets(np.random.default_rng(seed + 1000), PLACES)
        self.link, self.started, self.stopping = ShapedLink(trace), started, threading.Event()
        self.link.hold()             # the emulated link begins with the training
        torch.manual_seed(seed)
        self.model = arm.Reach().model()
        # As `fleet_models.follow(model)`, on an emulated link.
        self.follower = Following(self.model, FollowOptions(server, name, link=self.link))
        self.reached, self.late, self.taken = [], 0.0, [(0.0, 0, arm.success(
            self.model, self.places))]

    def run(self):
        """Act."""
        tick_at = time.monotonic()
        while not self.stopping.is_set():
            target, joints = arm.targets(self.dice, 1), arm.HOME[None]
            for tick in range(arm.TICKS):
                if tick % arm.PLAN == 0:
                    self._take()     # between two inferences
                    chunk = arm.planned(self.model, joints, target)
                joints = arm.moved(joints, chunk, tick % arm.PLAN)
                tick_at += 1 / arm.RATE
                self.stopping.wait(max(tick_at - time.monotonic(), 0.0))
                self.late = max(self.late, time.monotonic() - tick_at)
            self.reached.append((self.started(), bool(
                np.linalg.norm(arm.tip(joints) - target) <= arm.NEAR)))
        self.follower.close()

    def _take(self):
        if self.follower.newest is not None:
            self.link.begin(time.monotonic())
        if self.follower.take():
            self.taken.append((self.started(), self.follower.version.number, arm.success(
                self.model, self.places)))


def show(folder, seed, rank, number):
    """Record demonstration ``number`` of an arm, or of both halves for a test (rank 2)."""
    dice = np.random.default_rng([seed, rank, number])
    half = number % 2 if rank == 2 else rank
    arm.demonstrate(folder / (str(rank) if rank < 2 else 'test'), f'{number:04}',
                    arm.targets(dice, 1, half)[0], dice)


def run(out, seed, minutes):
    """Run the fleet and both arms; return the results, also if Ctrl+C has ended it."""
    fleet = load_fleet(str(HERE / 'fleet.yaml'), [])
    os.environ.update(dds_environment(fleet.network))
    out.mkdir(parents=True)
    for rank, count in ((0, BEGIN), (1, BEGIN), (2, TESTS)):
        for number in range(count):
            show(out / 'episodes', seed, rank, number)
    with (out / 'fleet.log').open('w') as log:
        process = subprocess.Popen(
            [sys.executable, '-m', 'rog_cli.main', 'fleet', 'up', str(HERE / 'fleet.yaml'),
             '--plain', '--out', 'fleet', '--set', f'seed={seed}', '--minutes', str(minutes)],
            cwd=out, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
    arms, begun = [], []             # begun: the time at which the training has begun

    def started():
        return time.monotonic() - begun[0] if begun else 0.0
    try:
        shown, said = BEGIN, 0.0
        for rank, robot in enumerate(fleet.robots):
            arms.append(Arm(rank, robot.name, link_trace(robot.link),
                            f'{fleet.network.namespace}/rog', seed, started))
            arms[-1].start()
        while process.poll() is None:
            time.sleep(0.1)
            if not begun and any(one.follower.newest is not None for one in arms):
                begun.append(time.monotonic())
            if begun and started() >= (shown - BEGIN + 1) * EVERY:
                for rank in range(2):
                    show(out / 'episodes', seed, rank, shown)
                shown += 1
            if begun and started() >= said:
                said += 5
                print(f'{started():4.0f} s  ' + '   '.join(map(_progress, arms)), flush=True)
    except KeyboardInterrupt:
        print('ending', flush=True)
        process.send_signal(signal.SIGINT)
    finally:
        for one in arms:
            one.stopping.set()
        for one in arms:
            one.join()
        if sys.exc_info()[0] is not None:
            process.terminate()
        process.wait(60)
    return _results(out, seed, arms, process.returncode)


def _progress(one):
    last = [ok for _, ok in one.reached[-20:]]
    _, version, share = one.taken[-1]
    return (f'{one.name}: version {version:2}, {share:4.0%} of the table, '
            f'last {len(last):2} reaches {np.mean(last or [0]):4.0%}')


def _results(out, seed, arms, code):
    events = read_run(out / 'fleet') if code == 0 else []
    steps = [event for event in events if isinstance(event, Iteration)]
    return {
        'seed': seed, 'code': code, 'success': {a.name: round(a.taken[-1][2], 3) for a in arms},
        'reaches': {a.name: len(a.reached) for a in arms},
        'versions': {a.name: len(a.taken) - 1 for a in arms},
        'iterations': {a.name: max((e.iteration for e in steps if e.robot == a.name), default=0)
                       for a in arms},
        'sent_bytes': sum(e.bytes_sent for e in steps),
        'received_bytes': sum(e.bytes_received for e in steps),
        'latest_tick_s': round(max(a.late for a in arms), 3),
        'curves': {a.name: [(round(t, 1), version, round(share, 3))
                            for t, version, share in a.taken] for a in arms}}


def draw(results, path):
    """Draw the success over time."""
    with styled():
        figure = new_figure(COLUMN, 2.0)
        axes = figure.add_subplot()
        axes.axvspan(*OUTAGE, color='.9', label='no link')
        for (name, curve), line in zip(results['curves'].items(), ('-', '--'), strict=True):
            axes.step([t for t, _, _ in curve], [100 * share for _, _, share in curve], line,
                      where='post', label=name)
        axes.set(xlabel='time (s)', ylabel='targets reached (%)', ylim=(0, 100))
        axes.legend(loc='lower right')
        figure.savefig(path, dpi=200)


def main():
    """Run the example; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--minutes', type=float, default=1.4, help='of training')
    parser.add_argument('--out', type=Path, default=None, help='folder for the results')
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)   # as Ctrl+C
    out = options.out or Path('runs') / time.strftime('learn_and_act-%Y%m%d-%H%M%S')
    results = run(out.absolute(), options.seed, options.minutes)
    (out / 'results.json').write_text(json.dumps(results))
    draw(results, out / 'success.png')
    print(f'in {out}: success.png, results.json, fleet.log, the run of the fleet, and the episodes')
    print(json.dumps({key: value for key, value in results.items() if key != 'curves'}))
    return results['code']


if __name__ == '__main__':
    sys.exit(main())
