"""A program follows a model over real DDS: with and without a key, restarts and refusals."""

import math
import time

import pytest
import torch
from fleet_link.key import new_key, write_key
from fleet_models import follow
from fleet_testing import LIMIT, eventually
from offering import Offering

torch.set_num_threads(1)


def net(width=6):
    return torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.BatchNorm1d(width),
                               torch.nn.Linear(width, 2))


@pytest.fixture
def made():
    servers = []

    def make(folder, key=None):
        servers.append(Offering(folder, key))
        return servers[-1]
    yield make
    for server in servers:
        server.close()


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(),
                                                 other.state_dict().values(), strict=True))


def test_a_model_takes_up_versions_between_two_inferences(made, tmp_path):
    server, first, second, mine = made(tmp_path), net(), net(), net()
    second[1].running_mean += 1
    server.give(first, .5)
    parameters = [*mine.parameters()]
    with follow(mine) as fleet:
        before = [p.detach().clone() for p in parameters]
        assert fleet.version is None and fleet.wait(LIMIT)
        assert all(torch.equal(a, b) for a, b in zip(before, parameters, strict=True))
        assert fleet.take() and not fleet.take()
        assert same(mine, first) and fleet.version.number == 1 and fleet.version.accuracy == .5
        assert all(a is b for a, b in zip(parameters, mine.parameters(), strict=True))
        server.give(second, .6)
        assert fleet.wait(LIMIT) and fleet.take() and same(mine, second)
        assert fleet.newest.number == 2 and fleet.reason == ''
        eventually(lambda: [says['version'] for says in server.offer.readers.values()] == [2])
    eventually(lambda: not server.offer.readers)


def test_what_is_worse_wrong_or_not_finite_is_not_taken_and_each_says_why(made, tmp_path):
    server, mine = made(tmp_path), net()
    server.give(net(), .8)
    checks = []
    with follow(mine, check=lambda m: checks.append(m) or .5) as fleet:
        assert fleet.wait(LIMIT) and fleet.take()
        used = [p.detach().clone() for p in mine.parameters()]

        def refused(why):
            eventually(lambda: why in fleet.reason, lambda: f'{why!r} in {fleet.reason!r}')
            assert not fleet.take()
            assert all(torch.equal(a, b) for a, b in zip(used, mine.parameters(), strict=True))
        server.give(net(), .75)
        refused('75.0 %, is below that of version 1 in use, 80.0 %')
        server.give(net())
        refused('its accuracy is not known')
        broken = net()
        broken[0].weight.data[1, 2] = math.nan
        server.give(broken, .9)
        refused("'0.weight' has a value that is NaN")
        server.give(net(7), .9)
        refused("'0.weight' has the shape [7, 4]")
        assert len(checks) == 1
        good = net()
        server.give(good, .795)
        assert fleet.wait(LIMIT) and fleet.take() and same(mine, good) and not fleet.reason
        assert checks[1] is not mine and same(checks[1], good)


def test_a_person_chooses_an_earlier_and_worse_version(made, tmp_path):
    server, first, mine = made(tmp_path), net(), net()
    early = server.give(first, .3)
    with follow(mine) as fleet:
        assert fleet.wait(LIMIT) and fleet.take()
        server.give(net(), .8)
        assert fleet.wait(LIMIT) and fleet.take()
        server.announce(early, pinned=True)
        assert fleet.wait(LIMIT) and fleet.take()
        assert same(mine, first) and fleet.version.number == 1


def test_the_check_of_a_program_refuses(made, tmp_path):
    server, mine = made(tmp_path), net()
    values = iter((.9, .5, math.nan, .95))
    server.give(net(), .5)
    with follow(mine, check=lambda m: next(values)) as fleet:
        assert fleet.wait(LIMIT) and fleet.take()
        server.give(net(), .6)
        eventually(lambda: 'gives 0.5, and 0.9' in fleet.reason)
        server.give(net(), .6)
        eventually(lambda: 'gives nan' in fleet.reason)
        server.give(net(), .6)
        assert fleet.wait(LIMIT) and fleet.take() and fleet.version.number == 4


def test_a_server_that_is_started_again_is_followed_again(made, tmp_path):
    server, mine = made(tmp_path), net()
    server.give(net(), .5)
    with follow(mine) as fleet:
        assert fleet.wait(LIMIT) and fleet.take()
        server.close()
        eventually(lambda: 'ended' in fleet._reader.trouble)
        server, third = made(tmp_path), net()
        server.give(third, .6)
        assert fleet.wait(LIMIT) and fleet.take() and same(mine, third)


def test_a_robot_without_a_link_begins_with_what_it_had(made, tmp_path):
    server, first, mine, again = made(tmp_path / 'a'), net(), net(), net()
    server.give(first, .5)
    with follow(mine, keep=tmp_path / 'kept') as fleet:
        assert fleet.wait(LIMIT) and fleet.take()
    server.close()
    with follow(again, keep=tmp_path / 'kept') as fleet:
        assert fleet.take() and same(again, first) and fleet.version.number == 1
    (tmp_path / 'kept' / 'model.safetensors').write_bytes(b'damaged')
    with follow(again, keep=tmp_path / 'kept') as fleet:
        assert not fleet.take()


def test_with_a_key_only_the_team_follows(made, tmp_path):
    key, other = new_key(), new_key()
    write_key(tmp_path / 'robot.key', key.of('robot1'))
    write_key(tmp_path / 'stranger.key', other.of('robot1'))
    server, first, mine = made(tmp_path / 'a', key), net(), net()
    server.give(first, .5)
    stranger, unkeyed = net(), net()
    with follow(mine, key=str(tmp_path / 'robot.key')) as fleet, \
            follow(stranger, key=str(tmp_path / 'stranger.key')) as theirs, \
            follow(unkeyed) as nobodys:
        assert fleet.wait(LIMIT) and fleet.take() and same(mine, first)
        eventually(lambda: 'key' in nobodys.reason, lambda: nobodys.reason)
        end = time.monotonic() + 2
        eventually(lambda: time.monotonic() > end)
        assert theirs.ready is None and nobodys.ready is None
        assert len(server.offer.readers) == 1


@pytest.mark.parametrize('margin', [-.1, 1.5])
def test_a_margin_is_a_share(margin):
    with pytest.raises(ValueError, match='margin must be 0 to 1'), follow(net(), margin=margin):
        pass
