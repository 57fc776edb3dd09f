"""Studies repeat the measurements of a paper in virtual time.

A study consists of cases. A case compares variants of one fleet. Its result is a comparison
(`rog_sim.comparison`) in a directory of its own, which `rog plot` draws. ``study.json`` holds all
comparisons:

    schema  rog-study/1
    study   name of the study
    cases   name of the case -> content of its comparison.json

``study.md`` holds the tables of the study, which `Table` describes.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fleet_env.durable import write_text
from fleet_env.records.summary import Summary, finite
from fleet_env.settings.base import changed
from fleet_env.settings.fleet import FleetConfig
from rog_core.errors import ConfigError
from rog_sim.compare import collect, jobs_of
from rog_sim.comparison import Comparison, MethodResult
from rog_sim.jobs import Job, RunDone, run_jobs
from rog_sim.table import Row, aligned, markdown

SCHEMA = 'rog-study/1'
STUDY_FILE = 'study.json'
Cell = Callable[[MethodResult, MethodResult], str]


@dataclass(frozen=True)
class Case:
    """Variants of a fleet to compare.

    ``variants``: label -> fleet; tables compare each variant with the first. ``seeds``: number of
    seeds of each variant. ``prepare``: function that completes a fleet before the run, when the
    seed is known.
    """

    variants: dict[str, FleetConfig]
    seeds: int = 5
    prepare: Callable[[FleetConfig], FleetConfig] = lambda fleet: fleet


@dataclass(frozen=True)
class Table:
    """A table: one row for each case whose name begins with ``cases``, one column per variant.

    ``cell``: function that returns the text of a cell. Its arguments are the results of the
    variant and of the first variant of the same case.
    """

    title: str
    cases: str
    cell: Cell
    first: bool = True  # whether the table has a column for the first variant


@dataclass(frozen=True)
class Study:
    """A study. ``server_every``: seconds between two measurements of the server's model."""

    name: str
    cases: dict[str, Case]
    tables: tuple[Table, ...]
    server_every: float

    def only(self, prefixes: list[str]) -> Study:
        """Return the study with only those cases whose names begin with one of ``prefixes``.

        :raises ConfigError: no case begins with one of the prefixes.
        """
        for prefix in prefixes:
            if not any(name.startswith(prefix) for name in self.cases):
                raise ConfigError(f"no case of study {self.name} begins with '{prefix}'; its cases "
                                  f'are {", ".join(self.cases)}')
        cases = {name: case for name, case in self.cases.items()
                 if any(name.startswith(prefix) for prefix in prefixes)}
        return dataclasses.replace(self, cases=cases)

    def jobs(self, out: Path, seeds: int | None = None) -> dict[str, list[Job]]:
        """Return a dict: name of the case -> its runs.

        :param seeds: number of seeds of each variant; default: ``Case.seeds``.
        """
        return {name: [dataclasses.replace(job, fleet=case.prepare(job.fleet)) for job in
                       jobs_of(case.variants, seeds or case.seeds, out / name)]
                for name, case in self.cases.items()}


def with_training(fleet: FleetConfig, **changes: Any) -> FleetConfig:
    """Return the fleet with changed training settings."""
    return changed(fleet, training=changes)


def run_study(study: Study, out: Path, seeds: int | None = None, workers: int | None = None,
              progress: RunDone | None = None, resume: bool = False,
              cluster: str | None = None) -> dict[str, Comparison]:
    """Run a study, and write ``study.json`` and ``study.md`` into ``out``.

    `Study.jobs` describes ``seeds``; `run_jobs` describes the other parameters and the errors.

    :returns: a dict: name of the case -> its comparison.
    """
    jobs = study.jobs(out, seeds)
    named = [dataclasses.replace(job, label=f'{name}: {job.label}')
             for name, case in jobs.items() for job in case]
    run_jobs(named, workers, progress, resume,
             partial(_simulate, server_every=study.server_every), cluster)
    comparisons = {name: collect(case, out / name) for name, case in jobs.items()}
    data = {'schema': SCHEMA, 'study': study.name,
            'cases': {name: dataclasses.asdict(c) for name, c in comparisons.items()}}
    write_text(out / STUDY_FILE, json.dumps(finite(data), indent=2, sort_keys=True) + '\n')
    write_text(out / 'study.md', '\n'.join(
        f'{title}\n\n{markdown(rows)}' for title, rows in tables(study, comparisons)))
    return comparisons


def text_tables(study: Study, comparisons: Mapping[str, Comparison]) -> str:
    """Return the tables of a study as aligned plain text."""
    return '\n\n'.join(f'{title}\n{aligned(rows)}' for title, rows in tables(study, comparisons))


def tables(study: Study, comparisons: Mapping[str, Comparison]) -> list[tuple[str, list[Row]]]:
    """Return title and rows of every table that has at least one row."""
    out = []
    for table in study.tables:
        cases = {name: c for name, c in comparisons.items() if name.startswith(table.cases)}
        labels = list(dict.fromkeys(m.sync for c in cases.values()
                                    for m in c.methods[not table.first:]))
        rows = [['', *labels]]
        for name, comparison in cases.items():
            cells = {m.sync: table.cell(m, comparison.methods[0]) for m in comparison.methods}
            rows.append([name, *(cells.get(label, '') for label in labels)])
        if cases:
            out.append((table.title, rows))
    return out


def _simulate(fleet: FleetConfig, out: Path, progress: Callable[[float], None],
              server_every: float) -> Summary:
    # this import is here because it loads PyTorch, which only the processes that simulate need
    from rog_sim.simulation import simulate

    # The server must not retire robots: in the papers, a method waits for slow robots without
    # limit.
    patient = changed(fleet, server={'patience': math.inf})
    return simulate(patient, out, progress, server_every)
