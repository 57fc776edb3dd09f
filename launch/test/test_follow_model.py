"""A program follows the model of a fleet that trains, through a kill and a choice."""

import pytest
import tiny_task
import torch
from fleet_env.versions import Versions
from fleet_env.weights import load_weights
from fleet_models import follow
from fleet_under_test import Fleet
from rog_cli.main import main

KEEP = {'server.keep': 100}


@pytest.fixture
def fleet(tmp_path, monkeypatch):
    with Fleet(tmp_path) as made:
        monkeypatch.setenv('ROS_DOMAIN_ID', str(made.domain))
        yield made


def model_of(fleet, number):
    model = tiny_task.Tiny(seed=3).model()
    load_weights(model, Versions(fleet.out / 'models').path(number))
    return model


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(),
                                                 other.state_dict().values(), strict=True))


def test_what_a_fleet_learns_is_taken_up_while_it_trains(fleet, capsys):
    mine = tiny_task.Tiny(seed=3).model()
    with follow(mine, margin=1.0) as following:
        fleet.start('server', **KEEP)
        fleet.start('robot1', 'robot2', pace=0.2)
        seen = set()

        def took():
            if following.take():
                number = following.version.number
                assert same(mine, model_of(fleet, number)), number
                seen.add(number)
            return len(seen)
        fleet.until(lambda: took() >= 3, 'three versions')
        own = tiny_task.Tiny(seed=3).model()
        with follow(own, 'local', robot='robot1') as local:    # what robot1 has, whoever's it is
            fleet.until(lambda: local.take() and local.version.iteration > 0, 'its own model')
            begun = local.version.iteration
            fleet.until(lambda: local.take() and local.version.iteration > begun, 'a newer one')
        assert not same(own, tiny_task.Tiny(seed=3).model())
        fleet.kill('server')
        fleet.start('server', resume=True, **KEEP)
        count = len(seen)
        fleet.until(lambda: took() >= count + 2, 'versions of the next server')
        fleet.until(lambda: following.version.iteration > 0, 'training goes on')

        chosen = min(Versions(fleet.out / 'models').numbers())
        assert main(['models', 'pin', str(chosen)]) == 0
        assert f'version {chosen} is offered' in capsys.readouterr().out
        fleet.until(lambda: took() and following.version.number == chosen, 'the chosen version')
        before = Versions(fleet.out / 'models').latest()
        fleet.until(lambda: Versions(fleet.out / 'models').latest() > before + 1, 'newer versions')
        took()
        assert following.version.number == chosen
        assert main(['models', 'unpin']) == 0
        fleet.until(lambda: took() and following.version.number > before, 'the newest again')
        assert main(['models', 'rollback']) == 0
        fleet.until(lambda: took() and Versions(fleet.out / 'models').pinned()
                    == following.version.number, 'the one before')
        assert main(['models', 'pin', '100000']) == 2
        assert 'version must be one of' in capsys.readouterr().err
        fleet.interrupt('server')
        fleet.ended('server')
