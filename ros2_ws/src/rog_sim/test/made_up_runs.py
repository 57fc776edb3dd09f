"""Invented runs: records with known numbers, for the tests of comparisons and figures."""

import os
import re
import signal

import numpy as np
from fleet_env.records.events import Evaluation, Fault, Iteration, RunWriter, Start, Status
from fleet_env.records.summary import Accuracy, RobotSummary, Summary, write_summary

POWER = (13.35, 4.25, 4.04)
PER_ITERATION = {'bsp': (1.0, 7.0, 10.0), 'ssp:4': (1.0, 6.5, 7.5), 'ssp:20': (1.0, 5.5, 5.0),
                 'dssp:3:15': (1.0, 5.5, 5.5), 'flown': (1.0, 6.0, 6.5), 'asp': (1.0, 5.0, 0.0),
                 'rsp:4': (1.0, 4.2, 2.8), 'rsp:20': (1.0, 3.4, 1.1)}


def record(directory, sync='rsp:4', seed=1, duration=3600.0, robots=4, rows=1000, every=10):
    """Write a plausible run; return its summary."""
    random = np.random.default_rng([seed, *map(ord, sync)])
    times = np.array(PER_ITERATION.get(sync, (1.0, 4.0, 2.0)))
    names = [f'robot{k + 1}' for k in range(robots)]
    entries, events = {}, []
    for rank, name in enumerate(names):
        t, k, joules, spent, evaluations, pushed = 0.0, 0, 0.0, np.zeros(3), [], []
        while True:
            deep = .4 < (t / duration + rank / robots) % 1 < .43
            parts = times * random.lognormal(0, .25, 3) * (1, 3 if deep else 1, 1)
            if t + parts.sum() > duration:
                break
            t, k = t + parts.sum(), k + 1
            spent += parts
            joules += float(parts @ POWER)
            rate = float(5 if deep else random.gamma(2, 30))
            rows_now = int(rows * np.clip(rate / 100, .28, 1)) if sync[0] == 'r' else rows
            pushed.append(rows_now)
            events.append(Iteration(t, name, k, 2 / (1 + k / 50), *map(float, parts), rows_now,
                                    rows_now, rows, 2000 * rows_now, 1500 * rows_now,
                                    int(3 if deep else random.integers(2)), rate, rate))
            if k % every == 0:
                late = .004 * float(re.findall(r'\d+', sync)[-1]) if ':' in sync else 0
                metric = .645 - .2 * np.exp(-k / (75 * (1 + late))) - .1 * late * (k > 100) \
                    + random.normal(0, .004)
                evaluations.append((t, k, float(metric)))
                events.append(Evaluation(t, name, k, float(metric)))
                events.append(Status(t, name, 'computing', 13.35, joules))
        entries[name] = RobotSummary(
            k, *map(float, spent), joules, 2000 * sum(pushed), 1500 * sum(pushed),
            float(np.mean(pushed or [0])), Accuracy(.82, .44, evaluations[-1][2] if evaluations
                                                    else float('nan')), evaluations)
    with RunWriter(directory) as writer:
        writer.write(Start(0.0, '', 'a:B', sync, seed, 'toy', names))
        for event in sorted(events, key=lambda e: e.t):
            writer.write(event)
        writer.write(Fault(duration / 2, names[-1], 'peer_lost', 'no heartbeat'))
    summary = Summary(sync, 'a:B', seed, duration, entries, 'toy')
    write_summary(directory, summary)
    return summary


def simulate(fleet, out=None, progress=None):
    """Write an invented run; tests use this function instead of `rog_sim.simulation.simulate`."""
    if fleet.training.sync == 'asp' and fleet.seed == 2:
        raise ValueError('the model diverged')
    for share in (.25, .5, 1.0):
        progress(share)
    return record(out, fleet.training.sync, fleet.seed, 60 * fleet.minutes, len(fleet.robots))


def endless(fleet, out=None, progress=None):
    """Print that the run has started, and never end."""
    # one system call, so that the output of other processes cannot split the line
    os.write(1, b'started\n')
    while True:
        progress(.5)


def endless_or_failing(fleet, out=None, progress=None):
    """Write an invented run for the method asp; never end for other methods."""
    if fleet.training.sync == 'asp':
        return simulate(fleet, out, progress)
    return endless(fleet, out, progress)


def endless_after_the_first(fleet, out=None, progress=None):
    """Write an invented run for the method rsp:4; never end for other methods."""
    return (simulate if fleet.training.sync == 'rsp:4' else endless)(fleet, out, progress)


def killed(fleet, out=None, progress=None):
    """Kill this process, as the kernel does when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)
