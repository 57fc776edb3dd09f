"""`rog study`: repeats the measurements of papers in virtual time."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from rog_cli.fleet_options import add_runs, at_least_one
from rog_cli.progress import runs_progress

from rog_studies.catalogue import STUDIES
from rog_studies.study import run_study, text_tables


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Declare the verb and its options."""
    parser = verbs.add_parser(
        'study', help='measure what a paper measured again, in virtual time',
        description='gsgm: training on data of which each robot has a corner (GSGM, Section V). '
                    'gsgm-svrg: the same with variance reduction. coding: gradient coding for '
                    'computers of several speeds that straggle (DGH-GC, Section 6).')
    parser.add_argument('study', choices=STUDIES, metavar='STUDY', help=', '.join(STUDIES))
    parser.add_argument('--only', metavar='A,B,...', help='only the cases that begin like this')
    parser.add_argument('--seeds', type=at_least_one, metavar='K',
                        help='runs of each variant (default: 5; fewer where runs are long)')
    add_runs(parser, 'study')
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from rog_studies.figures import draw_study

    study = STUDIES[options.study]
    if options.only:
        study = study.only([text.strip() for text in options.only.split(',') if text.strip()])
    out = options.out or Path('runs') / f'study-{study.name}-{time.strftime("%Y%m%d-%H%M%S")}'
    runs = sum(map(len, study.jobs(out, options.seeds).values()))
    try:
        with runs_progress(runs) as progress:
            comparisons = run_study(study, out, options.seeds, options.jobs, progress,
                                    options.resume, options.cluster)
    except KeyboardInterrupt:
        print(f'rog: stopped; finished runs are kept. Go on with --out {out} --resume',
              file=sys.stderr)
        return 130
    print(text_tables(study, comparisons))
    print(f'\nResults in {out}:')
    for path in (out / 'study.json', out / 'study.md', *draw_study(out)):
        print(path)
    return 0
