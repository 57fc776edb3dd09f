"""`rog trace`: show, generate and record link traces."""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from fleet_env.errors import TraceError
from fleet_env.links.generate import DURATION, PROFILES, SEED, STEP, generate
from fleet_env.links.statistics import PERCENTILES, TraceStatistics, describe
from fleet_env.links.trace import LinkTrace, format_trace, read_trace, write_trace
from fleet_env.links.trace_recorder import TraceRecorder, parse_iw
from fleet_env.records.events import Iteration, read_run

from .option_types import place

_BYTES_PER_MBIT = 125_000


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Declare the verb and its options."""
    parser = verbs.add_parser('trace', help='describe, generate or record link traces')
    sub = parser.add_subparsers(dest='action', required=True, metavar='ACTION')
    built_in = ', '.join(PROFILES)
    stats = sub.add_parser('stats', help='print statistics of a link: rates, changes, fades')
    stats.add_argument('traces', nargs='+', metavar='FILE|NAME',
                       help=f'files of "seconds Mbit/s" lines, or built-in traces: {built_in}')
    stats.add_argument('--step', type=float, default=STEP, metavar='S', help='sampling interval, '
                       's, on which the counted changes depend (default: %(default)s)')
    stats.set_defaults(run=_stats)
    new = sub.add_parser('generate', help='write a generated trace')
    new.add_argument('name', metavar='NAME', help=built_in)
    new.add_argument('--seed', type=int, default=SEED, help='default: %(default)s')
    new.add_argument('--minutes', type=float, default=DURATION / 60, help='default: %(default)s')
    new.add_argument('--step', type=float, default=STEP, metavar='S', help='default: %(default)s')
    new.add_argument('--out', type=place, metavar='FILE', help='default: to the terminal')
    new.set_defaults(run=_generate)
    record = sub.add_parser('record', help='write the trace of a real link, or of a run')
    source = record.add_mutually_exclusive_group(required=True)
    source.add_argument('--run', dest='directory', type=Path, metavar='DIR',
                        help='directory of a run.jsonl; needs --robot')
    source.add_argument('--iface', metavar='NAME', help='Wi-Fi interface, measured with iw')
    record.add_argument('--robot', metavar='NAME', help='robot whose link to take, with --run')
    record.add_argument('--out', type=place, required=True, metavar='FILE',
                        help='file for the trace')
    record.add_argument('--seconds', type=float, default=math.inf, metavar='S',
                        help='length of the trace, s (default: the whole run, or until Ctrl+C)')
    record.add_argument('--step', type=float, default=0.5, metavar='S',
                        help='duration of a sample, s (default: %(default)s)')
    record.set_defaults(run=_record)


def _stats(options: argparse.Namespace) -> int:
    if not (options.step > 0 and math.isfinite(options.step)):
        raise TraceError(f'--step is {options.step} s; it must be greater than 0')
    found = [describe(generate(name) if name in PROFILES else _read(name), options.step)
             for name in options.traces]
    titles = [name if name in PROFILES else Path(name).name for name in options.traces]
    tables = [_table(statistics) for statistics in found]
    for label, cells in [('', titles), *((label, [table[label] for table in tables])
                                         for label in tables[0])]:
        print(f'{label:<26}' + ''.join(f'  {cell:>{max(len(title), 8)}}'
                                       for title, cell in zip(titles, cells, strict=True)))
    return 0


def _read(name: str) -> LinkTrace:
    if not Path(name).exists():
        raise TraceError('there is no such file, and the built-in traces are '
                         f'{", ".join(PROFILES)}', name)
    return read_trace(name)


def _table(found: TraceStatistics) -> dict[str, str]:
    return {
        'mean, Mbit/s': f'{found.mean:.1f}', 'standard deviation': f'{found.std:.1f}',
        **{f'percentile {share}': f'{found.percentiles[share]:.1f}' for share in PERCENTILES},
        'below 5 Mbit/s, %': f'{100 * found.below_5:.1f}',
        'below 10 Mbit/s, %': f'{100 * found.below_10:.1f}',
        'a 20 % change every, s': f'{found.change_20:.2f}',
        'a 40 % change every, s': f'{found.change_40:.2f}',
        **{f'autocorrelation, {lag:g} s': f'{value:.2f}'
           for lag, value in found.autocorrelation.items()},
        'spell below 10, mean, s': f'{found.spell_mean:.1f}',
        'spell below 10, longest, s': f'{found.spell_max:.1f}'}


def _generate(options: argparse.Namespace) -> int:
    trace = generate(options.name, options.seed, options.minutes * 60, options.step)
    comment = (f'{options.name}, generated with seed {options.seed}; seconds, Mbit/s\n'
               f'rog trace generate {options.name} --seed {options.seed} '
               f'--minutes {options.minutes:g} --step {options.step:g}')
    _out(options.out, trace, comment)
    return 0


def _record(options: argparse.Namespace) -> int:
    if not options.seconds > 0:
        raise TraceError(f'--seconds is {options.seconds}; it must be greater than 0')
    recorder = TraceRecorder(options.step)
    if options.directory is not None:
        _from_run(recorder, options.directory, options.robot, options.seconds)
        source = f'{options.robot} in {options.directory}'
    else:
        if options.robot is not None:
            raise TraceError('--robot: it is for --run; leave it out with --iface')
        _from_iw(recorder, options.iface, options.seconds)
        source = f'tx bitrate of {options.iface}'
    _out(options.out, recorder.trace(), f'{source}; seconds, Mbit/s')
    return 0


def _from_run(recorder: TraceRecorder, directory: Path, robot: str | None,
              seconds: float) -> None:
    """Add the rate of a robot's link in each iteration of this robot to ``recorder``.

    The rate is the emulated link's rate or, for a real link, the measured throughput.
    Iterations that end later than ``seconds`` seconds after the start of the run are left
    out.
    """
    iterations = [event for event in read_run(directory) if isinstance(event, Iteration)]
    there = sorted({event.robot for event in iterations})
    if robot not in there:
        asked = 'give --robot' if robot is None else f'no iteration of {robot!r}'
        raise TraceError(f'{asked}; the run holds iterations of {", ".join(there) or "nobody"}',
                         str(directory))
    begin = 0.0
    for event in iterations:
        rate = event.bandwidth if math.isnan(event.link_rate) else event.link_rate
        if event.robot == robot and event.t <= seconds:
            if event.t > begin and not math.isnan(rate):
                recorder.add(begin, event.t, rate * (event.t - begin) * _BYTES_PER_MBIT)
            begin = event.t


def _from_iw(recorder: TraceRecorder, iface: str, seconds: float) -> None:
    """Ask `iw` for the rate once per time step, for ``seconds`` seconds or until Ctrl+C.

    The recorder defines the length of a time step.
    """
    start = begin = time.monotonic()
    try:
        while begin - start < seconds:
            rate = _bitrate(iface)
            time.sleep(recorder.step)
            end = time.monotonic()
            if not math.isnan(rate):
                recorder.add(begin, end, rate * (end - begin) * _BYTES_PER_MBIT)
            begin = end
    except KeyboardInterrupt:
        print('rog: interrupted; writing the trace up to here', file=sys.stderr)


def _bitrate(iface: str) -> float:
    """Return the tx bitrate in Mbit/s: 0 without a connection, NaN if `iw` does not answer."""
    try:
        done = subprocess.run(['iw', 'dev', iface, 'link'], text=True, check=False, timeout=10,
                              capture_output=True)
    except FileNotFoundError:
        raise TraceError('the program iw is not installed; install it (apt install iw), or record '
                         'from a run with --run and --robot') from None
    except subprocess.TimeoutExpired:
        return math.nan
    if done.returncode:
        raise TraceError(f'iw cannot measure {iface!r}: {done.stderr.strip()}; `iw dev` lists '
                         'the Wi-Fi interfaces')
    rates = [*parse_iw(done.stdout).values()]
    return rates[0] if rates else 0.0


def _out(path: Path | None, trace: LinkTrace, comment: str) -> None:
    # Rounding makes the file only a third as long. Rates are rounded to 100 bit/s, times to 1 µs.
    trace = LinkTrace(np.round(trace.times, 6), np.round(trace.rates, 4))
    if path is None:
        print(format_trace(trace, comment), end='')
        return
    write_trace(path, trace, comment)
    print(f'wrote {path}: {trace.period:g} s, mean {trace.mean:.1f} Mbit/s')
