"""rog study: choices, refusals, files. The runs are made up; rog_sim tests the studies."""

import pytest
import rog_sim.jobs
from rog_cli.main import main
from rog_cli.study import NAMES
from rog_sim.studies import STUDIES
from test_compare_verb import record, run


@pytest.fixture
def made_up(monkeypatch):
    """Let runs be made up; returns label and seed of those that were due."""
    asked = []

    def run_all(jobs, workers, tell, simulate):
        for job in jobs:
            asked.append((job.label, job.fleet.seed))
            record(job.directory, job.fleet, job.fleet.training.sync, job.fleet.seed)
            tell(job.label, job.fleet.seed, 1.0)

    monkeypatch.setattr(rog_sim.jobs, '_run_all', run_all)
    return asked


def test_every_study_can_be_named():
    assert tuple(STUDIES) == NAMES


def test_a_study_runs_its_cases_and_says_where_everything_is(capsys, tmp_path, made_up):
    out = tmp_path / 'out'
    code, text, _ = run(capsys, 'study', 'gsgm', '--only', 'mnistnet-10', '--seeds', '2',
                        '--out', str(out))
    assert code == 0
    assert len(made_up) == 14 and ('mnistnet-10: ssp:1 lm', 2) in made_up
    assert 'mnistnet-10: gsgm, seed 2: done' in text and 'Stability of GSGM' in text
    for path in (out / 'study.json', out / 'study.md', out / 'curves-mnistnet.png'):
        assert str(path) in text and path.exists()
    made_up.clear()
    code, _, error = run(capsys, 'study', 'gsgm', '--only', 'mnistnet-10', '--out', str(out))
    assert code == 2 and 'already holds a run' in error and made_up == []


def test_a_study_that_is_interrupted_says_how_to_go_on(capsys, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(rog_sim.jobs, '_run_all', interrupted)
    code, _, error = run(capsys, 'study', 'coding', '--out', str(tmp_path / 'out'))
    assert code == 130 and '--resume' in error


def test_cases_and_studies_that_there_are_not_are_refused(capsys, tmp_path, made_up):
    code, _, error = run(capsys, 'study', 'coding', '--only', 'speed', '--out', str(tmp_path))
    assert code == 2 and "begins with 'speed'" in error and made_up == []
    with pytest.raises(SystemExit):
        main(['study', 'gcs'])
    assert 'gsgm-svrg' in capsys.readouterr().err
