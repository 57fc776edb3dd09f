"""`rog study`: repeats measurements of papers in virtual time."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from fleet_env.command import at_least_one
from rog_cli.commands.fleet_options import add_runs
from rog_cli.display.progress import runs_progress
from rog_core.errors import ConfigError

from rog_studies.catalogue import STUDIES
from rog_studies.study import run_study, text_tables

# this study is not in `STUDIES`, because its runs depend on the results of its tuning
RIVALS = 'rivals'
WHOLE = 'whole_models'  # not in `STUDIES`, because it compares models, not methods
PEERS = 'peers'    # not in `STUDIES`, because its runs take real time


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Declare the verb and its options."""
    parser = verbs.add_parser(
        'study', help='measure what a paper measured again, in virtual time',
        description='gsgm: training on data of which each robot has a corner (GSGM, Section V). '
                    'gsgm-svrg: the same with variance reduction. coding: gradient coding for '
                    'computers of several speeds that straggle (DGH-GC, Section 6). bounds: '
                    'where waiting for nobody does harm. rivals: every method, '
                    'tuned, on natural images and on a map that robots share. whole_models: '
                    'ordinary models of PyTorch, as they are on the server, on the robots, and '
                    'after their export. peers: the programs '
                    'that users would otherwise install (Flower, PyTorch DDP, ...), from PyPI, '
                    'in real time on emulated links; needs root.')
    parser.add_argument('study', choices=(*STUDIES, RIVALS, WHOLE, PEERS), metavar='STUDY',
                        help=', '.join((*STUDIES, RIVALS, WHOLE, PEERS)))
    parser.add_argument('--only', metavar='A,B,...', help='only the cases that begin like this; '
                        'peers: only these programs; whole_models: only these models')
    parser.add_argument('--seeds', type=at_least_one, metavar='K',
                        help='runs of each variant (default: 5; fewer where runs are long)')
    parser.add_argument('--quick', action='store_true',
                        help='rivals, peers: the small version, which needs no data')
    parser.add_argument('--data', type=Path, metavar='DIR',
                        help='rivals, peers: directory that holds cifar10 and traces')
    parser.add_argument('--minutes', type=float, metavar='M',
                        help='rivals: virtual minutes of a run (default: 60); peers: real minutes '
                             '(default: 20)')
    parser.add_argument('--methods', metavar='A,B,...',
                        help='rivals: only these rows of its tables, bsp among them; '
                             'whole_models: only these methods')
    parser.add_argument('--scenarios', metavar='A,B,...', help='peers: what happens to the links '
                        'and the processes; docs/results/rivals.md lists them')
    parser.add_argument('--robots', type=at_least_one, metavar='K',
                        help='peers: number of robots (default: 4)')
    parser.add_argument('--scale', type=float, metavar='F', help='peers: factor on the recorded '
                        'rates (default: 1; with --quick 0.1)')
    add_runs(parser, 'study')
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    only = _listed(options.only)
    out = options.out or Path('runs') / f'study-{options.study}-{time.strftime("%Y%m%d-%H%M%S")}'
    try:
        kind = {RIVALS: _rivals, WHOLE: _whole, PEERS: _peers}.get(options.study, _study)
        text, paths = kind(options, only, out)
    except KeyboardInterrupt:
        print(f'rog: stopped; finished runs are kept. Go on with --out {out} --resume',
              file=sys.stderr)
        return 130
    print(text)
    print(f'\nResults in {out}:')
    for path in paths:
        print(path)
    return 0


def _study(options: argparse.Namespace, only: list[str], out: Path) -> tuple[str, list[Path]]:
    from rog_studies.figures import draw_study

    study = STUDIES[options.study]
    if options.quick or options.data or options.minutes is not None or options.methods:
        raise ConfigError(f'--quick, --data, --minutes and --methods are of the study {RIVALS}')
    _only_peers(options)
    if only:
        study = study.only(only)
    runs = sum(map(len, study.jobs(out, options.seeds).values()))
    with runs_progress(runs) as progress:
        comparisons = run_study(study, out, options.seeds, options.jobs, progress, options.resume,
                                options.cluster)
    return text_tables(study, comparisons), [out / 'study.json', out / 'study.md',
                                             *draw_study(out)]


def _rivals(options: argparse.Namespace, only: list[str], out: Path) -> tuple[str, list[Path]]:
    from rog_studies import rivals

    _only_peers(options)
    plan = rivals.plan_of(options.data, options.quick, options.minutes, options.seeds,
                          _listed(options.methods)).only(only)
    with runs_progress(plan.runs) as progress:
        data = rivals.run_rivals(plan, rivals.records_of(options.data), out, workers=options.jobs,
                                 progress=progress, resume=options.resume, cluster=options.cluster)
    return rivals.text_tables(data), [out / 'rivals.json', out / 'rivals.md',
                                      *rivals.draw_rivals(out)]


def _whole(options: argparse.Namespace, only: list[str], out: Path) -> tuple[str, list[Path]]:
    from rog_studies import whole_models as study

    _only_peers(options)
    if options.quick or options.data or options.minutes is not None or options.cluster:
        raise ConfigError(f'--quick, --data, --minutes and --cluster are not of the study {WHOLE}')
    began = time.monotonic()
    data = study.run_whole(
        out, only, _listed(options.methods), options.seeds or study.SEEDS, options.jobs or 2,
        options.resume, lambda text, seed: print(
            f'{time.monotonic() - began:5.0f} s  seed {seed}  {text}', flush=True))
    return study.text_tables(data), [out / study.STUDY_FILE, out / study.PAGE_FILE]


def _peers(options: argparse.Namespace, only: list[str], out: Path) -> tuple[str, list[Path]]:
    from fleet_emulation.network import check_rights

    from rog_studies.peers import figures, study

    if options.methods or options.jobs or options.cluster:
        raise ConfigError(f'--methods, --jobs and --cluster are not of the study {PEERS}: it runs '
                          'real programs, one run at a time')
    plan = study.plan_of(options.data, options.quick, only, _listed(options.scenarios),
                         options.robots, options.minutes, options.seeds, options.scale)
    check_rights()
    with runs_progress(plan.runs) as progress:
        data = study.run_study(plan, out, options.resume, lambda text: print(text, flush=True),
                               progress)
    return study.text_tables(data), [out / study.PEERS_FILE, out / 'peers.md',
                                     *figures.draw_peers(out)]


def _only_peers(options: argparse.Namespace) -> None:
    if options.scenarios or options.robots or options.scale is not None:
        raise ConfigError(f'--scenarios, --robots and --scale are of the study {PEERS}')


def _listed(text: str | None) -> list[str]:
    return [part.strip() for part in (text or '').split(',') if part.strip()]
