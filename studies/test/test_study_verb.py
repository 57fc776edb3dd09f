"""`rog study`: which cases it runs, what it refuses, and which files it writes.

The runs are invented; test_studies.py tests the studies.
"""

from importlib.metadata import EntryPoints

import pytest
from rog_cli import main as command
from rog_cli.main import main


def run(capsys, *arguments):
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_study_runs_its_cases_and_says_where_everything_is(capsys, tmp_path, made_up):
    out = tmp_path / 'out'
    code, text, _ = run(capsys, 'study', 'gsgm', '--only', 'mnistnet-10', '--seeds', '2',
                        '--jobs', '1', '--out', str(out))
    assert code == 0
    assert len(made_up) == 14 and ('ssp:1', 2) in made_up
    assert 'mnistnet-10: gsgm, seed 2: done' in text and 'Stability of GSGM' in text
    for path in (out / 'study.json', out / 'study.md', out / 'curves-mnistnet.png'):
        assert str(path) in text and path.exists()
    made_up.clear()
    code, _, error = run(capsys, 'study', 'gsgm', '--only', 'mnistnet-10', '--out', str(out))
    assert code == 2 and 'already holds a run' in error and made_up == []


@pytest.mark.long
def test_a_study_that_is_interrupted_says_how_to_go_on(capsys, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr('rog_sim.simulation.simulate', interrupted)
    code, _, error = run(capsys, 'study', 'coding', '--jobs', '1', '--out', str(tmp_path / 'out'))
    assert code == 130 and '--resume' in error


def test_cases_and_studies_that_there_are_not_are_refused(capsys, tmp_path, made_up):
    code, _, error = run(capsys, 'study', 'coding', '--only', 'speed', '--out', str(tmp_path))
    assert code == 2 and "begins with 'speed'" in error and made_up == []
    with pytest.raises(SystemExit):
        main(['study', 'gcs'])
    assert 'gsgm-svrg' in capsys.readouterr().err


def test_without_this_package_rog_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setattr(command, 'entry_points', lambda group: EntryPoints([]))
    for verb in ('study', 'calibrate'):
        code, _, error = run(capsys, verb, '--help')
        assert code == 2 and error.count('\n') == 1
        assert f'the package with the verb {verb} is not installed' in error
        assert 'pip install -e studies' in error
