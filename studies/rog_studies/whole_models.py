"""The study of whole models: the server's model, a robot's and the exported one must be the same.

`rog_studies.whole_runs` describes the runs. The directory of the study holds MODEL/METHOD/seedK for
each run, MODEL/alone/seedK for each training of one machine, and MODEL/bare/seed1 for the short run
of a model of `COUNTED` without buffers. ``whole_models.json`` holds all results:

    schema  rog-whole-models/1
    models  model -> method, alone or bare -> seed -> content of ``result.json``

``whole_models.md`` is the page docs/results/whole_models.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

from fleet_env.durable import write_text
from rog_core.errors import ConfigError
from rog_sim.table import Row, aligned, markdown

from .whole_runs import (
    ALONE,
    BARE,
    COUNTED,
    FASTER,
    METHODS,
    MODELS,
    PACE,
    RESULT_FILE,
    Run,
    folder,
    runs_of,
    train_alone,
)

SCHEMA = 'rog-whole-models/1'
STUDY_FILE, PAGE_FILE = 'whole_models.json', 'whole_models.md'
SEEDS = 3
Tell = Callable[[str, int], None]  # called with the outcome, as text, and the seed of a run
_PAGE = '''# Whole models

Made by `rog study whole_models`.

Does a model that a fleet has trained leave the fleet as it is there? Two robots train ordinary
models, with all that these have: BatchNorm and its statistics, frozen layers, tied weights, sparse
gradients. The table compares four accuracies, in %, each the mean (± standard deviation) over at
most {seeds} seeds:

- **server**: the server's model when the run ends.
- **robot**: the model of a robot, mean of both robots, when it has received the final model, as
  every robot does at the end of a run.
- **exported**: the file `models/latest/model.safetensors` of the run, loaded with
  `load_state_dict(strict=True)` in a separate process that has PyTorch, safetensors and the task,
  and nothing of the fleet.
- **alone**: plain PyTorch on one machine, with the same batches: one step of SGD, with the same
  learning rate and momentum, on the mean gradient of one batch of every robot; as many steps as a
  robot had batches.

The last two columns are the largest differences from the server, over all seeds and robots, in
points.

{accuracies}
{largest}

## What buffers cost

A push under `bsp` with the codec `onebit` carries every row of the model, and the buffers raw. The
column *without* is the same network whose BatchNorms keep no running statistics
(`track_running_stats=False`), in a run of its own; nothing else differs. The numbers are the
payload of the median push of a robot.

{bytes}
## How it was measured

```bash
rog study whole_models --out runs/whole_models
```

- The models and their data are in `studies/rog_studies/ordinary.py`; learning rates and durations
  are in `whole_runs.py` beside it. All data are real: scikit-learn's digits, of which 797 are test
  data, and the text of the license.
- Time is virtual. A gradient of 16 samples takes {pace:g} s. The links replay the record `outdoor`,
  scaled to the model: at its mean rate, a full push of one bit per element takes {push:g} s. The
  robots begin in a good part of the record, each in another place; after two to four minutes
  their links fade. They share the air.
- Learning rate and duration of a model are the same for all methods, and so chosen that all of them
  learn. So this table does not say which method is faster;
  [Measured methods](methods.md) does.
- torchvision's mobilenet_v3_small averages its statistics slowly (momentum 0.01): after n batches
  they still hold 0.99ⁿ of the values that they began with. {young}
'''


def run_whole(out: Path, models: Sequence[str] = (), methods: Sequence[str] = (),
              seeds: int = SEEDS, jobs: int = 2, resume: bool = False,
              tell: Tell = lambda label, seed: None) -> dict[str, Any]:
    """Run the study, and write its files into ``out``; return the content of `STUDY_FILE`.

    :param models, methods: names of those to run; empty: all.
    :param jobs: number of runs at a time.
    :param resume: keep finished runs; if False, a finished run is an error.
    :raises ConfigError: ``out`` holds other runs, or a name is unknown.
    :raises RunError: a run failed; finished runs are kept.
    """
    runs = runs_of(out, models or list(MODELS), methods or list(METHODS), seeds)
    for run in runs:
        if (run.directory / RESULT_FILE).exists() and not (resume and run.result()):
            raise ConfigError(f'{run.directory} already holds a run'
                              f'{" with other settings" if resume else ""}; choose another '
                              'directory, or ' + ('move it away' if resume else '--resume'))

    def done(run: Run) -> str:
        return f'{run.model}, {run.method}: kept' if run.result() else run.do()

    _in_parallel([(run.seed, partial(done, run)) for run in runs], jobs, tell)
    results = {run: found for run in runs if (found := run.result())}
    alone: dict[tuple[str, int], list[Run]] = {}
    for run in results:
        if run.method != BARE:
            alone.setdefault((run.model, run.seed), []).append(run)
    _in_parallel([(own[0].seed, partial(train_alone, out, own, results))
                  for own in alone.values()], jobs, tell)
    return write(out)


def _in_parallel(calls: Sequence[tuple[int, Callable[[], str]]], jobs: int, tell: Tell) -> None:
    """Make the calls, ``jobs`` at a time; after an error or Ctrl+C, start no other."""
    with ThreadPoolExecutor(jobs) as pool:
        seeds = {pool.submit(call): seed for seed, call in calls}
        try:
            for future in as_completed(seeds):
                tell(future.result(), seeds[future])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def write(out: Path) -> dict[str, Any]:
    """Write `STUDY_FILE` and `PAGE_FILE` from the results in ``out``; return the former."""
    found: dict[str, Any] = {}
    for path in sorted(out.glob(f'*/*/seed*/{RESULT_FILE}')):
        model, method, seed = path.parent.parts[-3:]
        found.setdefault(model, {}).setdefault(method, {})[seed.removeprefix('seed')] = \
            json.loads(path.read_text())
    data = {'schema': SCHEMA, 'models': found}
    write_text(out / STUDY_FILE, json.dumps(data, indent=2, sort_keys=True) + '\n')
    write_text(out / PAGE_FILE, page(data))
    return data


def page(data: Mapping[str, Any]) -> str:
    """Return the page of results, as docs/results/whole_models.md has it."""
    most = max((len(seeds) for methods in data['models'].values() for seeds in methods.values()),
               default=0)
    return _PAGE.format(
        seeds=most, accuracies=markdown(accuracy_rows(data)), largest=_largest(data),
        bytes=markdown(byte_rows(data)), young=_young_text(data), pace=PACE, push=PACE / FASTER)


def text_tables(data: Mapping[str, Any]) -> str:
    """Return the tables as aligned plain text."""
    return '\n\n'.join(aligned(rows) for rows in (accuracy_rows(data), byte_rows(data))
                       if len(rows) > 1)


def accuracy_rows(data: Mapping[str, Any]) -> list[Row]:
    """Return the rows of the table of accuracies."""
    rows: list[Row] = [['model', 'method', 'batches', 'server', 'robot', 'exported', 'alone',
                        'robot - server', 'exported - server']]
    for model, trained in MODELS.items():
        methods = data['models'].get(model, {})
        alone = methods.get(ALONE, {})
        for method in METHODS:
            seeds = methods.get(folder(method), {})
            if not seeds:
                continue
            text = f'**{model}**: {trained.text}' if method == next(iter(METHODS)) else model
            one = [alone[seed]['accuracies'][method] for seed in seeds
                   if method in alone.get(seed, {}).get('accuracies', {})]
            rows.append([
                text, f'`{method}`',
                f'{statistics.fmean(b for r in seeds.values() for b in r["batches"].values()):.0f}',
                _percent([run['server'] for run in seeds.values()]),
                _percent([statistics.fmean(run['robots'].values()) for run in seeds.values()]),
                _percent([run['exported'] for run in seeds.values()]), _percent(one),
                f'{_apart(seeds.values()):.2f}', f'{_changed(seeds.values()):.2f}'])
    return rows


def byte_rows(data: Mapping[str, Any]) -> list[Row]:
    """Return the rows of the table of bytes."""
    rows: list[Row] = [['model', 'elements in buffers', 'with buffers, B', 'without, B', 'more, B',
                        'more']]
    for model in COUNTED:
        methods = data['models'].get(model, {})
        if 'bsp' not in methods or BARE not in methods:
            continue
        run = next(iter(methods['bsp'].values()))
        whole = run['push']['bytes']
        bare = next(iter(methods[BARE].values()))['push']['bytes']
        rows.append([model, f'{run["buffers"]:,}', f'{whole:,.0f}', f'{bare:,.0f}',
                     f'{whole - bare:,.0f}', f'{100 * (whole / bare - 1):.1f} %'])
    return rows


def _percent(values: Sequence[float]) -> str:
    if not values:
        return '-'
    mean = f'{100 * statistics.fmean(values):.1f}'
    return f'{mean} ± {100 * statistics.stdev(values):.1f}' if len(values) > 1 else mean


def _apart(runs: Iterable[Mapping[str, Any]]) -> float:
    """Return the largest difference between a robot and the server, in points."""
    return max(100 * abs(accuracy - run['server'])
               for run in runs for accuracy in run['robots'].values())


def _changed(runs: Iterable[Mapping[str, Any]]) -> float:
    """Return the largest difference between the exported model and the server's, in points."""
    return max(100 * abs(run['exported'] - run['server']) for run in runs)


def _fleet_runs(data: Mapping[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(model, method, run) for model, methods in data['models'].items()
            for method in METHODS for run in methods.get(folder(method), {}).values()]


def _largest(data: Mapping[str, Any]) -> str:
    """Return a sentence with the largest differences of all runs."""
    runs = _fleet_runs(data)
    if not runs:
        return ''
    model, method, _ = max(runs, key=lambda one: _apart([one[2]]))
    found = [run for _, _, run in runs]
    beyond = sum(_apart([run]) > 1 for run in found)
    return f'''The exported model differs from the server's by at most {_changed(found):.2f} points,
over all {len(runs)} runs. A robot differs from the server by more than a point in {beyond} of
them, at most by {_apart(found):.2f} points ({model}, `{method}`).'''


def _young_text(data: Mapping[str, Any]) -> str:
    shares = [run['young'] for model, _, run in _fleet_runs(data) if model == COUNTED[0]]
    return f'In these runs that is at most {100 * max(shares):.1f} %.' if shares else ''


def main() -> None:
    """Run the study from the command line."""
    parser = argparse.ArgumentParser(prog='python -m rog_studies.whole_models',
                                     description=(__doc__ or '').split('\n\n')[0])
    parser.add_argument('--out', type=Path, default=Path('runs/whole_models'), metavar='DIR')
    parser.add_argument('--models', default='', metavar='A,B,...')
    parser.add_argument('--methods', default='', metavar='A,B,...')
    parser.add_argument('--seeds', type=int, default=SEEDS, metavar='K')
    parser.add_argument('--jobs', type=int, default=2, metavar='N')
    parser.add_argument('--resume', action='store_true')
    options = parser.parse_args()
    began = time.monotonic()
    run_whole(options.out, _listed(options.models), _listed(options.methods), options.seeds,
              options.jobs, options.resume,
              lambda text, seed: print(f'{time.monotonic() - began:5.0f} s  seed {seed}  {text}',
                                       flush=True))
    print(options.out / PAGE_FILE)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(',') if part.strip()]


if __name__ == '__main__':
    main()
