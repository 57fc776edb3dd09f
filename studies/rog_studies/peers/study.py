"""`rog study peers`: run every program in every scenario with every seed, and make tables.

``peers.json``:

    schema    rog-peers/1
    settings  minutes, robots, scale (factor for the recorded rates), quick (true for the short
              study), and the settings of the task: data, model, batch_size, pace_s, local_steps,
              targets
    programs  name -> what (description), versions (of its packages), missing (why it could not be
              run; '' if it could)
    cases     scenario -> program -> seeds, outcomes (one text for each seed), and measures:
              name -> values, mean, low, high

``values`` has a number for each seed. The number is null if the run did not start or never reached
the target accuracy of the measure. ``mean``, ``low`` and ``high`` are the mean of the numbers and
its 95 % interval by Student's t, as in `rog_studies.rivals`. The measures are `results.MEASURES`:
means over the robots, except accuracies and times. Each run has a folder SCENARIO/PROGRAM/seedK
with ``result.json`` (see `results`), the program's own logs, the journals of its processes, the
adapters that ran, and the counters of the emulated radio.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet_env.durable import write_text
from fleet_env.links.trace import LinkTrace
from fleet_env.records.summary import finite
from fleet_env.settings.base import changed
from fleet_env.settings.fleet import ChannelConfig, FleetConfig, LinkConfig, RobotConfig
from rog_core.errors import ConfigError
from rog_sim.table import Row, aligned, markdown

from ..rivals import LONGEST, interval, keep_records, linked, records_of, text_of
from .adapters.task import Settings
from .environments import METHODS, PEERS, EnvironmentFault, chosen, environment, versions
from .export import DIGITS, Trained, cifar10, export
from .results import MEASURES, RESULT_FILE, measures
from .run import Run, run
from .scenarios import SCENARIOS, STEADY, Scenario
from .scenarios import chosen as chosen_scenarios

SCHEMA = 'rog-peers/1'
PEERS_FILE = 'peers.json'
QUICK = ('rog', 'flower')   # programs of the short study
QUICK_MINUTES = 40 / 60
# factor for the recorded rates in the short study; its model is so small that transfers at the
# full rates would take too little time
QUICK_SCALE = 0.1


@dataclass(frozen=True)
class Plan:
    """What a study runs.

    ``scale``: factor for the recorded rates. ``quick``: whether it is the short study.
    """

    task: Trained
    programs: list[str]
    scenarios: list[Scenario]
    robots: int = 4
    minutes: float = 20.0
    seeds: int = 3
    scale: float = 1.0
    quick: bool = False
    records: Mapping[str, LinkTrace] = field(default_factory=dict, repr=False)

    @property
    def runs(self) -> int:
        """Number of runs."""
        return len(self.programs) * len(self.scenarios) * self.seeds


def plan_of(data: Path | None = None, quick: bool = False, only: list[str] | None = None,
            scenarios: list[str] | None = None, robots: int | None = None,
            minutes: float | None = None, seeds: int | None = None,
            scale: float | None = None) -> Plan:
    """Return the plan of the full study or, with ``quick``, of the short study.

    :param data: directory that holds cifar10 and traces; the short study does not need it.
    :raises ConfigError: a name is unknown, or a number is out of range.
    """
    minutes = (QUICK_MINUTES if quick else 20.0) if minutes is None else minutes
    if not 0 < minutes <= LONGEST:
        raise ConfigError(f'--minutes must be more than 0 and at most {LONGEST:g}, got '
                          f'{minutes:g}')
    scale = (QUICK_SCALE if quick else 1.0) if scale is None else scale
    if not 0 < scale < float('inf'):
        raise ConfigError(f'--scale must be more than 0, got {scale:g}')
    robots = robots or (2 if quick else 4)
    if not 2 <= robots <= 8:
        raise ConfigError(f'--robots must be 2 to 8, got {robots}')
    names = chosen(only or [])
    if quick and not only:
        names = list(QUICK)
    found = chosen_scenarios(scenarios or (['outdoor'] if quick else []))
    for scenario in found:
        scenario.schedule(minutes)
    return Plan(DIGITS if quick else cifar10(data), names, found, robots, minutes,
                seeds or (1 if quick else 3), scale, quick, records_of(data))


def fleet_of(plan: Plan, scenario: Scenario, seed: int, place: Path) -> FleetConfig:
    """Return the fleet of a run: its robots and their links.

    The robots share the air time. The seed changes how the links replay the record (see `linked`).

    :param place: the directory for the files with the traces of the links.
    """
    rates = dict(scenario.rates)
    names = [f'robot{number}' for number in range(1, plan.robots + 1)]
    robots = tuple(RobotConfig(name=name, link=LinkConfig(trace='', rate=rates.get(name, STEADY)))
                   for name in names)
    fleet = FleetConfig(name='peers', robots=robots, seed=seed, minutes=plan.minutes,
                        channel=ChannelConfig(shared=True))
    if not scenario.record:
        return fleet
    fleet = linked(fleet, scenario.record, plan.records[scenario.record], place)
    # `linked` has set ``scale`` for virtual time: to the share of the link's rate that transfers
    # reach. Here the transfers are real, so set ``scale`` to the plan's factor alone.
    return changed(fleet, robots=tuple(
        changed(robot, link=changed(robot.link, scale=plan.scale)) for robot in fleet.robots))


def run_study(plan: Plan, out: Path, resume: bool = False,
              tell: Callable[[str], None] = lambda text: None,
              progress: Callable[[str, int], None] = lambda label, seed: None) -> dict[str, Any]:
    """Carry out the study.

    Write ``peers.json`` and ``peers.md`` into ``out`` after every run.

    :param resume: keep the finished runs in ``out`` that have the same settings.
    :returns: the content of ``peers.json``.
    :raises ConfigError: ``resume`` is False, and ``out`` already holds a run of the plan;
        this error comes before the first run. Or ``resume`` is True, and the next run of
        the plan is in ``out`` with other settings.
    :raises NetworkError: this user or machine cannot emulate a network.
    """
    out = out.absolute()
    _check(plan, out, resume)
    out.mkdir(parents=True, exist_ok=True)
    keep_records(plan.records, out)
    pythons: dict[str, Path] = {}
    missing: dict[str, str] = {}
    for name in plan.programs:
        if name in PEERS:
            try:
                pythons[name] = environment(PEERS[name], out / 'pip' / f'{name}.log', tell)
            except EnvironmentFault as error:
                missing[name] = str(error)
                tell(str(error))
    for scenario in plan.scenarios:
        for seed in range(1, plan.seeds + 1):
            for name in plan.programs:
                if name in missing:
                    continue
                result = _result(_run_of(plan, scenario, seed, name, out), pythons.get(name), tell)
                tell(f'{scenario.name}, {name}, seed {seed}: {result["outcome"]}')
                progress(f'{scenario.name}: {name}', seed)
                _write(gathered(plan, finished(plan, out), missing), out)
    return _write(gathered(plan, finished(plan, out), missing), out)


def finished(plan: Plan, out: Path) -> list[dict[str, Any]]:
    """Return the results in ``out`` of all runs with the plan's minutes, robots, scale and model.

    These include scenarios and programs that only an earlier study ran. The results have the order
    of the tables.
    """
    found = []
    for scenario in SCENARIOS:
        for name in (*METHODS, *PEERS):
            for path in sorted((out / scenario / name).glob(f'seed*/{RESULT_FILE}'), key=_seed):
                result = json.loads(path.read_text())
                kept = result['settings']
                if (kept['minutes'], kept['robots'], kept['scale'], kept['task']['model']) == (
                        plan.minutes, plan.robots, plan.scale, plan.task.model):
                    found.append(result)
    return found


def _seed(path: Path) -> int:
    return int(path.parent.name.removeprefix('seed'))


def _check(plan: Plan, out: Path, resume: bool) -> None:
    for scenario in plan.scenarios:
        for seed in range(1, plan.seeds + 1):
            for name in plan.programs:
                folder = _folder(out, scenario, name, seed)
                if (folder / RESULT_FILE).exists() and not resume:
                    raise ConfigError(f'{folder} already holds a run; choose another --out, or go '
                                      'on with --resume')


def _folder(out: Path, scenario: Scenario, name: str, seed: int) -> Path:
    return out / scenario.name / name / f'seed{seed}'


def _run_of(plan: Plan, scenario: Scenario, seed: int, name: str, out: Path) -> Run:
    data = export(plan.task, plan.robots, seed, plan.minutes, out / 'data' / f'seed{seed}')
    folder = _folder(out, scenario, name, seed)
    settings = Settings(**json.loads((data / 'task.json').read_text()))
    return Run(name, scenario, fleet_of(plan, scenario, seed, out / 'links'), settings,
               plan.task.targets, plan.scale, data, folder)


def _result(one: Run, python: Path | None, tell: Callable[[str], None]) -> dict[str, Any]:
    """Return the result of a run: the one on disk, if the run is finished, or a new one."""
    path = one.folder / RESULT_FILE
    if path.exists():
        kept: dict[str, Any] = json.loads(path.read_text())
        if kept['settings'] != json.loads(json.dumps(one.depends_on())):
            raise ConfigError(f'{one.folder} holds a run with other settings; choose another '
                              '--out, or the options of that run')
        return kept
    return run(one, PEERS.get(one.program), python, versions(python) if python else {}, tell)


def gathered(plan: Plan, results: list[dict[str, Any]], missing: Mapping[str, str]
             ) -> dict[str, Any]:
    """Return the content of ``peers.json``."""
    cases: dict[str, Any] = {}
    for result in results:
        case = cases.setdefault(result['scenario'], {}).setdefault(
            result['program'], {'seeds': [], 'outcomes': [], 'measures': []})
        case['seeds'].append(result['seed'])
        case['outcomes'].append(result['outcome'])
        case['measures'].append(measures(result))
    for programs in cases.values():
        for case in programs.values():
            case['measures'] = {name: interval([one[name] for one in case['measures']])
                                for name in MEASURES}
    known = {result['program']: result['versions'] for result in results}
    return {'schema': SCHEMA, 'settings': {
        'minutes': plan.minutes, 'robots': plan.robots, 'scale': plan.scale, 'quick': plan.quick,
        'data': plan.task.name, 'model': plan.task.model, 'batch_size': plan.task.batch_size,
        'pace_s': plan.task.pace, 'local_steps': plan.task.local_steps,
        'targets': list(plan.task.targets)},
        'programs': {name: {'what': PEERS[name].what if name in PEERS else
                            f'this suite, {METHODS[name].sync}',
                            'versions': known.get(name, {}), 'missing': missing.get(name, '')}
                     for name in (*METHODS, *PEERS) if name in plan.programs or name in known},
        'cases': cases}


def _write(data: dict[str, Any], out: Path) -> dict[str, Any]:
    write_text(out / PEERS_FILE, json.dumps(finite(data), indent=1, sort_keys=True) + '\n')
    write_text(out / 'peers.md', '\n'.join(
        f'{title}\n\n{markdown(rows)}' for title, rows in tables(data)))
    return data


def tables(data: Mapping[str, Any]) -> list[tuple[str, list[Row]]]:
    """Return (title, rows) of each table.

    There is one table for each scenario, and one that lists the programs that were not run.
    """
    settings, found = data['settings'], []
    targets = settings['targets']
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        'samples': lambda m: text_of(m['samples']),
        **{f's to {100 * target:g} %': lambda m, k=k: text_of(m[f'target_{k}_s'])  # type: ignore
           for k, target in enumerate(targets)},
        '% at the end': lambda m: text_of(m['accuracy_end'], 100, 1),
        'MB up': lambda m: text_of(m['up_bytes'], 1e-6),
        'MB down': lambda m: text_of(m['down_bytes'], 1e-6),
        'waiting %': lambda m: text_of(m['waiting'], 100, 1),
        'kJ': lambda m: text_of(m['energy_j'], 1e-3)}
    for scenario, programs in data['cases'].items():
        rows = [['program', *columns, 'how it ended']]
        for name, case in programs.items():
            rows.append([name, *(cell(case['measures']) for cell in columns.values()),
                         ' / '.join(dict.fromkeys(case['outcomes']))])
        found.append((f'{scenario}: {settings["robots"]} robots, {settings["minutes"]:.3g} min, '
                      f'{settings["data"]}, per robot', rows))
    missing = [[name, one['missing'].splitlines()[0]] for name, one in data['programs'].items()
               if one['missing']]
    if missing:
        found.append(('Not run', [['program', 'why'], *missing]))
    return found


def text_tables(data: Mapping[str, Any]) -> str:
    """Return the tables as aligned plain text."""
    return '\n\n'.join(f'{title}\n{aligned(rows)}' for title, rows in tables(data))
