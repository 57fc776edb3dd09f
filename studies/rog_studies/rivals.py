"""The study of rivals: compares all methods that a user can choose today.

The study has two tasks and three kinds of links. Tuning tries equally many settings for
every method (`Rival.tries`). It uses the published links (the record replayed with seed 0) and a
seed that the tables do not use. The study then uses the best settings of a method on
all links.

``rivals.json``:

    schema  rog-rivals/1
    quick   whether this is the small version of the study
    budget  budget of the tuning, the same for each method: tries, minutes (virtual)
            and seed
    tuned   task -> method -> chosen (the best settings) and tried (a list of
            settings, each with its score: the mean accuracy in the second half of the
            run, or 0 if the run diverged)
    cases   task -> links -> an object with the keys
            robots, duration_s, seeds
            times    times in seconds at which accuracy_0 to accuracy_2 are measured
            targets  accuracies, 0 to 1, to which target_0_s to target_2_j refer
            methods  method -> measure -> values, mean, low, high

``values`` has one number for each seed, or null for an event that never happened or a
quantity that was not measured. ``mean``, ``low`` and ``high`` use only the numbers: the
mean, and the ends of its 95 % interval by Student's t (null with fewer than two
numbers). The measures are:

    names in `MEASURES`  explained by `rog_sim.comparison.MethodResult`
    sent_bytes           bytes that a robot pushed in the run. Pulls do not count,
                         because the first pull carries the whole model with every method.
    diverged             0 or 1
    accuracy_K           accuracy at time K: the mean of the last `WINDOW`
                         measurements, which cover one minute
    target_K_s           time in seconds until the accuracy first reached target K
    target_K_j           energy of a robot until this time, in joules
    of_bsp               target_1_s divided by target_1_s of `BASE` with the same seed
    of_best              target_1_s divided by target_1_s of the fastest rival with the
                         same seed
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from fleet_env.durable import write_text
from fleet_env.links.trace import LinkTrace, format_trace, read_trace, write_trace
from fleet_env.records.summary import finite
from fleet_env.settings.base import changed
from fleet_env.settings.fleet import FleetConfig, LinkConfig
from fleet_env.settings.fleet_file import link_trace
from rog_core.errors import ConfigError
from rog_sim.comparison import COMPARISON_FILE, Comparison, Spread
from rog_sim.figures.methods import draw_comparison
from rog_sim.jobs import Job
from rog_sim.measure import Run, read_run_measures
from rog_sim.table import Row, aligned, markdown, spread
from scipy.special import stdtrit

from .calibration import EFFICIENCY, published_fleet
from .study import Case, Study, run_study, with_training

SCHEMA = 'rog-rivals/1'
RIVALS_FILE = 'rivals.json'
MEASURES = ('iterations', 'stall_share', 'energy_j', 'accuracy_settled')
TRIES = 4                       # number of settings that the tuning tries for every method
SEED = 1000                     # seed of the tuning; the tables use other seeds: 1, 2, ...
BASE = 'bsp'                    # in `of_bsp`, times are divided by the time of this method
# our methods; they do not count as rivals in `of_best`
OURS = ('rsp:4', 'rsp:20+pipeline+sparse', 'rsp+local')
LONGEST = 1440.0                # longest duration of a run, in minutes
EVALUATE_S = 15.0               # seconds between measurements of the server's model
# Number of measurements in a mean. The best single measurement would depend on chance.
WINDOW = 4
# The outer step of DiLoCo. Published values are rate 0.7 and momentum 0.9; for short runs,
# momentum 0.3 to 0.5.
OUTER = '+rate=0.7+momentum=0.5'


@dataclass(frozen=True)
class Rival:
    """A method, and the `TRIES` sets of settings of `TrainingConfig` that the tuning tries."""

    name: str
    tries: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Trained:
    """A task with its settings of `TrainingConfig`, and the values for its tables.

    ``targets``: three accuracies, 0 to 1. ``rates``: learning rates to try, ascending.
    ``server_every``: see `Study`. ``codec``: codec of all methods that do not name their own.
    """

    settings: dict[str, Any]
    targets: tuple[float, float, float]
    rates: tuple[float, float, float, float]
    server_every: float = EVALUATE_S
    codec: str = 'onebit'


@dataclass(frozen=True)
class Plan:
    """The size of the study.

    ``seeds``: kind of links -> number of seeds. ``minutes``: virtual duration of a run.
    ``cases``: pairs (task, kind of links) to run; empty: all.
    """

    tasks: dict[str, Trained]
    seeds: dict[str, int]
    minutes: float
    quick: bool = False
    methods: tuple[str, ...] = ()  # names of the rivals to run; if empty, all of `rivals_of`
    tuning: float = 0.25        # duration of a try, as a share of ``minutes``
    cases: frozenset[tuple[str, str]] = frozenset()

    @property
    def times(self) -> list[float]:
        """Times in seconds at which the tables give accuracies; for 60 min: 600, 1800, 3600."""
        return [60 * self.minutes * share for share in (1 / 6, 1 / 2, 1)]

    @property
    def runs(self) -> int:
        """Number of runs of the study, including the runs of the tuning."""
        return sum(len(self.rivals(name)) * (TRIES + sum(self.seeds_of(name).values()))
                   for name in self.tasks)

    def seeds_of(self, name: str) -> dict[str, int]:
        """Return a dict: kind of links on which the task runs -> number of seeds."""
        return {links: count for links, count in self.seeds.items()
                if not self.cases or (name, links) in self.cases}

    def rivals(self, name: str) -> list[Rival]:
        """Return the rivals that run on a task."""
        return [rival for rival in rivals_of(self.tasks[name])
                if rival.name in (self.methods or (rival.name,))]

    def only(self, prefixes: Sequence[str]) -> Plan:
        """Return the plan with only some cases, whose names have the form ``task-links``.

        :param prefixes: keep each case whose name begins with one of these.
        :raises ConfigError: no case begins with one of the prefixes.
        """
        if not prefixes:
            return self
        names = {f'{task}-{links}': (task, links) for task in self.tasks
                 for links in self.seeds_of(task)}
        for prefix in prefixes:
            if not any(name.startswith(prefix) for name in names):
                raise ConfigError(f"no case of study rivals begins with '{prefix}'; its cases "
                                  f'are {", ".join(names)}')
        kept = frozenset(pair for name, pair in names.items() if name.startswith(tuple(prefixes)))
        tasks = {task for task, _ in kept}
        return replace(self, cases=kept,
                       tasks={name: one for name, one in self.tasks.items() if name in tasks})


def rivals_of(task: Trained) -> list[Rival]:
    """Return every method of the tables, with the settings to try for it on ``task``."""
    lowest, low, middle, high = task.rates

    def rates(sync: str, codec: str = task.codec) -> tuple[dict[str, Any], ...]:
        return tuple({'sync': sync, 'codec': codec, 'learning_rate': rate}
                     for rate in (middle, low, high, lowest))

    def steps(sync: str, codec: str = task.codec) -> tuple[dict[str, Any], ...]:
        return tuple({'sync': sync.format(H=count), 'codec': codec, 'learning_rate': rate}
                     for count, rate in ((8, middle), (8, low), (32, middle), (8, lowest)))

    return [
        Rival('bsp', rates('bsp')),
        Rival('bsp raw', rates('bsp', 'raw')),
        Rival('ssp:4', rates('ssp:4')),
        Rival('asp', rates('asp')),
        Rival('rsp:4', rates('rsp:4')),
        Rival('rsp:20+pipeline+sparse', rates('rsp:20+pipeline+sparse')),
        Rival('rsp+local', steps('rsp:4+pipeline+sparse+local={H}')),
        Rival('sparseloco', steps('diloco:{H}+rate=1+momentum=0', 'sparseloco')),
        Rival('decoupled', steps(f'diloco:{{H}}:2{OUTER}+quorum=3+grace=1', 'e3m0')),
        Rival('diloco', steps(f'diloco:{{H}}{OUTER}', 'e3m0')),
        Rival('local', steps('local:{H}'))]


def cifar10(root: Path) -> Trained:
    """Return the task of `rog_tasks.cruda` on CIFAR-10, whose archives are in ``root``."""
    options = {'data': 'image_folder', 'data_options': {'root': str(root.absolute()), 'size': 32},
               'model': 'convmlp', 'pretrain_epochs': 6, 'pretrain_seed': 0, 'test_limit': 500}
    # The batch size is 8 instead of the published 24, to save computing time: an hour with four
    # robots has up to 15,000 gradients. The accuracy at the start is 54 %. The targets are far
    # above it, because nearly every method exceeds 55 % at the first measurement, after 15 s.
    return Trained({'task': 'rog_tasks.cruda:Cruda', 'task_options': options, 'batch_size': 8},
                   (0.6, 0.65, 0.7), (0.0001, 0.0003, 0.001, 0.003))


DIGITS = Trained({'task': 'rog_tasks.cruda:Cruda'}, (0.8, 0.9, 0.95),
                 (0.00015, 0.0005, 0.0015, 0.0045))
# The server's map reaches these targets with depth errors of 40, 20 and 10 cm.
CRIMP = Trained({'task': 'rog_tasks.crimp:Crimp'}, (0.6, 0.8, 0.9),
                (0.01, 0.03, 0.1, 0.3), codec='ternary:0.05')


def plan_of(data: Path | None, quick: bool, minutes: float | None = None,
            seeds: int | None = None, methods: Sequence[str] = ()) -> Plan:
    """Return the plan of the full study or, with ``quick``, of the small study.

    :param data: directory that holds ``cifar10``; the small study does not need it.
    :param minutes, seeds, methods: values to use in place of the plan's own values.
    :raises ConfigError: the full study has no data, ``minutes`` is out of range, a method is
        unknown, or ``methods`` lacks `BASE`.
    """
    if minutes is not None and not 0 < minutes <= LONGEST:
        raise ConfigError(f'--minutes is {minutes:g}; a run has more than 0 and at most '
                          f'{LONGEST:g} minutes')
    known = [rival.name for rival in rivals_of(DIGITS)]
    for method in methods:
        if method not in known:
            raise ConfigError(f"'{method}' is no method of study rivals; it has "
                              f'{", ".join(known)}')
    if methods and BASE not in methods:
        raise ConfigError(f'the others are compared with {BASE}; name it, too')
    if quick:
        return Plan({'digits': DIGITS}, dict.fromkeys(('published', 'reversed'), seeds or 2),
                    8.0 if minutes is None else minutes, True, tuple(methods))
    if data is None or not (data / 'cifar10').is_dir():
        raise ConfigError(f'{data or "no directory"} has no folder cifar10; --data names the '
                          'directory that holds cifar10 and traces, --quick needs none')
    counts = {'published': 5, 'reversed': 3, 'indoors': 3}
    return Plan({'cifar10': cifar10(data / 'cifar10'), 'crimp': CRIMP},
                {links: seeds or count for links, count in counts.items()},
                60.0 if minutes is None else minutes, methods=tuple(methods))


def records_of(data: Path | None) -> dict[str, LinkTrace]:
    """Return a dict: kind of links -> record to replay; without ``data``, generate the records.

    :raises TraceError: a record cannot be read.
    """
    if data is None:
        outdoors, indoors = (link_trace(LinkConfig(trace=name)) for name in ('outdoor', 'indoor'))
    else:
        outdoors, indoors = (read_trace(data / 'traces' / name) for name in (
            'rog_outdoors_record.txt', 'lop_indoors.txt'))
    backwards = LinkTrace(outdoors.times, outdoors.rates[::-1], outdoors.period)
    return {'published': outdoors, 'reversed': backwards, 'indoors': indoors}


def linked(fleet: FleetConfig, links: str, record: LinkTrace, place: Path) -> FleetConfig:
    """Return the fleet with links that replay a record.

    The fleet's seed changes the replay.

    Outdoor records are replayed as in the published runs: some samples last longer than in the
    record (see `replay`). The indoor record is replayed as it was recorded; the robot and the
    seed decide at which sample of the record a link starts.

    :param place: directory for the traces of the links.
    """
    if links != 'indoors':
        seed = 0 if fleet.seed == SEED else fleet.seed
        played = published_fleet(record, seed, place / links, fleet.minutes, len(fleet.robots))
        return changed(fleet, robots=played.robots)
    place.mkdir(parents=True, exist_ok=True)
    path = place / f'{links}.txt'
    write_trace(path, record)
    shift, start = record.period / len(fleet.robots), fleet.seed * record.period / 7
    return changed(fleet, robots=tuple(
        changed(robot, link=LinkConfig(trace=str(path.absolute()), scale=EFFICIENCY,
                                       offset=(start + rank * shift) % record.period))
        for rank, robot in enumerate(fleet.robots)))


def study_of(name: str, plan: Plan, chosen: Mapping[str, dict[str, Any]],
             records: Mapping[str, LinkTrace], place: Path) -> Study:
    """Return the study whose results fill the tables of one task.

    :param name: name of the task in ``plan``.
    :param chosen: method -> its tuned settings.
    :param records: kind of links -> record to replay.
    :param place: directory for the traces of the links.
    """
    task = plan.tasks[name]
    fleet = changed(_fleet(task, plan.minutes, records, place), seed=1)
    variants = {method: with_training(fleet, **settings) for method, settings in chosen.items()}
    return Study(f'rivals-{name}', {
        links: Case(variants, seeds, partial(linked, links=links, record=records[links],
                                             place=place))
        for links, seeds in plan.seeds_of(name).items()}, (), task.server_every)


def tuning_of(name: str, plan: Plan, records: Mapping[str, LinkTrace], place: Path) -> Study:
    """Return the study that tunes the methods on one task.

    The study has a case for each method, with a variant for each try. `study_of` explains the
    parameters.
    """
    task = plan.tasks[name]
    fleet = changed(_fleet(task, plan.tuning * plan.minutes, records, place), seed=SEED)
    prepare = partial(linked, links='published', record=records['published'], place=place)
    return Study(f'tuning-{name}', {
        rival.name.replace(':', '-').replace(' ', '-'): Case(
            {f'try {k}': with_training(fleet, **settings)
             for k, settings in enumerate(rival.tries)}, 1, prepare)
        for rival in plan.rivals(name)}, (), task.server_every)


def _fleet(task: Trained, minutes: float, records: Mapping[str, LinkTrace], place: Path
           ) -> FleetConfig:
    fleet = published_fleet(records['published'], 0, place / 'published', minutes)
    return changed(with_training(fleet, evaluate_every=0, **task.settings), name='rivals')


def run_rivals(plan: Plan, records: Mapping[str, LinkTrace], out: Path, **options: Any
               ) -> dict[str, Any]:
    """Tune every method, run the study, and write ``rivals.json`` and ``rivals.md`` into ``out``.

    The runs of a task go to a directory with the task's name. In it, the runs of the tuning go to
    ``tuning``, and the other runs to one directory for each kind of links.

    :param options: ``workers``, ``progress``, ``resume`` and ``cluster`` of `run_study`, which
        also describes the errors.
    :returns: the content of ``rivals.json``.
    """
    out.mkdir(parents=True, exist_ok=True)
    keep_records(records, out)
    data: dict[str, Any] = {
        'schema': SCHEMA, 'quick': plan.quick, 'tuned': {}, 'cases': {}, 'budget': {
            'tries': TRIES, 'minutes': plan.tuning * plan.minutes, 'seed': SEED}}
    for name, task in plan.tasks.items():
        place = out / name
        tuning = tuning_of(name, plan, records, place / 'links')
        found = run_study(tuning, place / 'tuning', **options)
        tuned = {rival.name: _chosen(rival, case)
                 for rival, case in zip(plan.rivals(name), found.values(), strict=True)}
        study = study_of(name, plan, {method: one['chosen'] for method, one in tuned.items()},
                         records, place / 'links')
        run_study(study, place, **options)
        data['tuned'][name] = tuned
        data['cases'][name] = {
            links: _case(case, task, plan.times)
            for links, case in study.jobs(place).items()}
        _write(data, out)
    return data


def keep_records(records: Mapping[str, LinkTrace], out: Path) -> None:
    """Write the records into ``out`` unless they are there already.

    :raises ConfigError: ``out`` already holds other records. A table must not mix runs on different
        records.
    """
    place = out / 'records'
    place.mkdir(exist_ok=True)
    for name, record in records.items():
        path = place / f'{name}.txt'
        if not path.exists():
            write_trace(path, record)
        elif path.read_text() != format_trace(record):
            raise ConfigError(f'{out} holds runs on other {name} links, those of {path}; choose '
                              'another directory, or the --data of those runs')


def _chosen(rival: Rival, case: Comparison) -> dict[str, Any]:
    scores = [0.0 if method.diverged else method.accuracy_settled.mean for method in case.methods]
    best = max(range(len(scores)), key=lambda k: (math.isfinite(scores[k]), scores[k]))
    return {'chosen': rival.tries[best],
            'tried': [{**settings, 'score': score}
                      for settings, score in zip(rival.tries, scores, strict=True)]}


def _case(jobs: list[Job], task: Trained, times: list[float]) -> dict[str, Any]:
    runs: dict[str, list[Run]] = {}
    for job in jobs:
        runs.setdefault(job.label, []).append(read_run_measures(job.directory).smoothed(WINDOW))
    measured = {method: [_measures(run, task.targets, times) for run in group]
                for method, group in runs.items()}
    waits = {method: [one['target_1_s'] for one in group] for method, group in measured.items()}
    for method, group in measured.items():
        for seed, one in enumerate(group):
            rivals = [waits[other][seed] for other in waits if other not in OURS]
            for name, time in (('of_bsp', waits[BASE][seed]), ('of_best', _least(rivals))):
                one[name] = waits[method][seed] / time if time else math.nan
    first = next(iter(runs.values()))
    return {'robots': len(first[0].summary.robots), 'duration_s': first[0].duration,
            'seeds': [run.summary.seed for run in first], 'times': times,
            'targets': list(task.targets),
            'methods': {method: {name: interval([one[name] for one in group])
                                 for name in group[0]} for method, group in measured.items()}}


def _measures(run: Run, targets: Sequence[float], times: Sequence[float]) -> dict[str, float]:
    """Return the measures of one run for ``rivals.json``, but not `of_bsp` and `of_best`."""
    known, robots = run.measures(targets[1], 0), run.summary.robots.values()
    reached = run.reached(targets)
    return {**{name: known[name] for name in MEASURES},
            'diverged': float(run.diverged),
            'sent_bytes': sum(r.bytes_sent for r in robots) / len(robots),
            **{f'accuracy_{k}': float(value) for k, value in enumerate(run.accuracy(times))},
            **{f'target_{k}_s': float(value) for k, value in enumerate(reached)},
            **{f'target_{k}_j': float(value) for k, value in enumerate(run.energy_at(reached))}}


def _least(values: Iterable[float]) -> float:
    return min((value for value in values if math.isfinite(value)), default=math.nan)


def interval(values: Sequence[float]) -> dict[str, Any]:
    """Return the values, their mean, and the mean's 95 % interval by Student's t.

    Mean and interval ignore values that are not finite.
    """
    known = np.array([value for value in values if math.isfinite(value)])
    mean = float(known.mean()) if known.size else math.nan
    half = math.nan
    if known.size > 1:
        half = float(stdtrit(known.size - 1, 0.975) * known.std(ddof=1) / math.sqrt(known.size))
    return {'values': list(values), 'mean': mean, 'low': mean - half, 'high': mean + half}


def tables(data: Mapping[str, Any]) -> list[tuple[str, list[Row]]]:
    """Return title and rows of every table; ``data``: the result of `run_rivals`."""
    out = []
    for name, cases in data['cases'].items():
        for links, case in cases.items():
            seeds = len(case['seeds'])
            what = f'{name}, {links} links: {case["robots"]} robots, ' \
                   f'{case["duration_s"] / 60:g} min, {seeds} seed{"s" if seeds > 1 else ""}'
            out.append((what, _rows(case, _progress_columns(case))))
            out.append((f'{what}: to the targets', _rows(case, _target_columns(case))))
        tuned = data['tuned'][name]
        out.append((f'{name}: chosen in {data["budget"]["tries"]} tries of '
                    f'{data["budget"]["minutes"]:g} min each', [
                        ['method', 'sync', 'codec', 'learning rate', 'scores, %'],
                        *([method, one['chosen']['sync'], one['chosen']['codec'],
                           f'{one["chosen"]["learning_rate"]:g}',
                           ', '.join(f'{100 * tried["score"]:.1f}' for tried in one['tried'])]
                          for method, one in tuned.items())]))
    return out


Column = Callable[[Mapping[str, Any]], str]


def _progress_columns(case: Mapping[str, Any]) -> dict[str, Column]:
    columns: dict[str, Column] = {
        'iterations': lambda m: text_of(m['iterations']),
        'stall %': lambda m: text_of(m['stall_share'], 100, 1),
        'MB pushed': lambda m: text_of(m['sent_bytes'], 1e-6)}
    for k, time in enumerate(case['times']):
        columns[f'% at {time / 60:g} min'] = partial(_cell, name=f'accuracy_{k}', scale=100)
    columns['% in the second half'] = partial(_cell, name='accuracy_settled', scale=100)
    return columns


def _target_columns(case: Mapping[str, Any]) -> dict[str, Column]:
    columns: dict[str, Column] = {}
    for k, target in enumerate(case['targets']):
        columns[f's to {100 * target:g} %'] = partial(_cell, name=f'target_{k}_s')
    for k, target in enumerate(case['targets']):
        columns[f'kJ to {100 * target:g} %'] = partial(_cell, name=f'target_{k}_j', scale=1e-3)
    middle = f'{100 * case["targets"][1]:g} %'
    columns[f'time to {middle} / bsp'] = partial(_cell, name='of_bsp')
    columns['/ best rival'] = partial(_cell, name='of_best')
    return columns


def _rows(case: Mapping[str, Any], columns: Mapping[str, Column]) -> list[Row]:
    return [['method', *columns], *([method, *(cell(measured) for cell in columns.values())]
                                    for method, measured in case['methods'].items())]


def _cell(method: Mapping[str, Any], name: str, scale: float = 1.0) -> str:
    return text_of(method[name], scale)


def text_of(found: Mapping[str, Any], scale: float = 1.0, digits: int | None = None) -> str:
    """Return a measure as mean ± half of its interval.

    If some seeds have no value, the text also says how many seeds have a value.
    """
    known = sum(map(math.isfinite, found['values']))
    half = Spread(found['mean'], found['high'] - found['mean'])
    return spread(half, scale, digits) + (
        f' ({known} of {len(found["values"])})' if 0 < known < len(found['values']) else '')


def text_tables(data: Mapping[str, Any]) -> str:
    """Return the tables as aligned plain text."""
    return '\n\n'.join(f'{title}\n{aligned(rows)}' for title, rows in tables(data))


def _write(data: Mapping[str, Any], out: Path) -> None:
    write_text(out / RIVALS_FILE, json.dumps(finite(data), indent=2, sort_keys=True) + '\n')
    write_text(out / 'rivals.md', '\n'.join(
        f'{title}\n\n{markdown(rows)}' for title, rows in tables(data)))


def draw_rivals(out: Path) -> list[Path]:
    """Draw every comparison of the study below ``out``; return the paths of the figures."""
    return [path for place in sorted(out.glob(f'*/*/{COMPARISON_FILE}'))
            for path in draw_comparison([place.parent])]
