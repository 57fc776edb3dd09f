"""A program follows a model over real DDS: with and without a key, restarts and refusals."""

import contextlib
import copy
import gc
import math
import sys
import threading
import time
import weakref

import pytest
import torch
from fleet_env.emulated.shaped import ShapedLink
from fleet_env.settings.fleet import LinkConfig
from fleet_env.settings.fleet_file import link_trace
from fleet_env.versions import Versions
from fleet_link.key import new_key, write_key
from fleet_models import Follower, FollowOptions, follow, following, offer, standing
from fleet_models.errors import FollowError
from fleet_testing import LIMIT, eventually
from offering import Offering

torch.set_num_threads(1)


def net(width=6):
    return torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.BatchNorm1d(width),
                               torch.nn.Linear(width, 2))


class Counting(ShapedLink):
    """A link that counts the bytes that are sent."""

    bytes = 0

    def send(self, nbytes, publish, now, lossy=False):
        self.bytes += nbytes
        super().send(nbytes, publish, now, lossy)


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


class Choosy(torch.nn.Linear):
    """A layer of a user that does not load large weights."""

    def _load_from_state_dict(self, state, prefix, *rest):
        if state[f'{prefix}weight'].abs().max() > 9:
            raise ArithmeticError('too large')
        super()._load_from_state_dict(state, prefix, *rest)


def test_a_version_that_a_layer_does_not_load_leaves_no_half(made, tmp_path):
    server, mine, new = made(tmp_path), net(), net()
    mine[2] = Choosy(6, 2)
    new[2].weight.data.fill_(10)
    before = copy.deepcopy(mine.state_dict())
    with follow(mine) as fleet:
        server.give(new, .5)
        eventually(lambda: 'does not fit the model: too large' in fleet.reason)
        assert not fleet.take()
        assert all(torch.equal(a, b) for a, b in zip(
            before.values(), mine.state_dict().values(), strict=True))


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
    stranger, unkeyed, other_name = net(), net(), net()
    with follow(mine, key=str(tmp_path / 'robot.key')) as fleet, \
            follow(stranger, key=str(tmp_path / 'stranger.key')) as theirs, \
            follow(unkeyed) as nobodys, \
            follow(other_name, key=str(tmp_path / 'robot.key'), robot='robot2') as renamed:
        assert fleet.wait(LIMIT) and fleet.take() and same(mine, first)
        eventually(lambda: 'key' in nobodys.reason, lambda: nobodys.reason)
        eventually(lambda: 'this is the key of robot1, not of robot2' in renamed.reason,
                   lambda: renamed.reason)
        end = time.monotonic() + 2
        eventually(lambda: time.monotonic() > end)
        assert theirs.ready is None and nobodys.ready is None
        assert len(server.offer.readers) == 1


def test_a_version_that_became_worse_while_it_came_is_not_taken(made, tmp_path):
    server, mine, good = made(tmp_path), net(), net()
    began, go_on = threading.Event(), threading.Event()

    def check(model):
        began.set()
        assert go_on.wait(LIMIT)
        return .5
    server.give(good, .9)
    with follow(mine, check=check) as fleet:
        assert began.wait(LIMIT)
        server.give(net(), .3)      # nothing is in use yet, so it is fetched
        eventually(lambda: fleet._fetched is not None)
        go_on.set()
        eventually(lambda: 'below that of version 1' in fleet.reason)
        assert fleet.take() and fleet.version.number == 1 and same(mine, good)


def test_a_version_waits_for_its_program_while_a_newer_one_is_checked(made, tmp_path):
    server, mine, first = made(tmp_path), net(), net()
    began, go_on, values = threading.Event(), threading.Event(), iter((.5, .1))

    def check(model):
        value = next(values)
        if value == .1:
            began.set()
            assert go_on.wait(LIMIT)
        return value
    server.give(first, .5)
    with follow(mine, check=check) as fleet:
        assert fleet.wait(LIMIT)
        server.give(net(), .6)
        assert began.wait(LIMIT)
        assert fleet.take() and same(mine, first)
        go_on.set()
        eventually(lambda: 'gives 0.1, and 0.5' in fleet.reason)


def test_a_person_chooses_a_version_that_the_check_has_refused(made, tmp_path):
    server, mine, chosen, values = made(tmp_path), net(), net(), iter((.9, .1, .1))
    server.give(net(), .5)
    with follow(mine, check=lambda m: next(values)) as fleet:
        assert fleet.wait(LIMIT) and fleet.take()
        version = server.give(chosen, .6)
        eventually(lambda: 'gives 0.1' in fleet.reason)
        server.announce(version, pinned=True)
        assert fleet.wait(LIMIT) and fleet.take() and same(mine, chosen)


def test_a_version_that_a_person_takes_back_is_not_taken_any_more(made, tmp_path):
    server, mine, first = made(tmp_path), net(), net()
    early = server.give(first, .5)
    with follow(mine) as fleet:
        assert fleet.wait(LIMIT) and fleet.take()
        server.give(net(), .6)
        assert fleet.wait(LIMIT)
        server.announce(early, pinned=True)
        eventually(lambda: fleet.newest.number == 1)
        assert not fleet.wait(0) and not fleet.take() and same(mine, first) and not fleet.reason


def test_whatever_a_model_raises_is_a_reason_and_the_next_version_is_examined(made, tmp_path):
    class Odd(torch.nn.Linear):
        fails = 1

        def state_dict(self, *args, **kwargs):
            if Odd.fails:
                Odd.fails -= 1
                raise RuntimeError('not now')
            return super().state_dict(*args, **kwargs)
    server, mine = made(tmp_path), Odd(2, 2)
    server.give(torch.nn.Linear(2, 2), .5)
    with follow(mine) as fleet:
        eventually(lambda: 'RuntimeError: not now' in fleet.reason)
        server.give(torch.nn.Linear(2, 2), .6)
        assert fleet.wait(LIMIT) and fleet.take()


@pytest.mark.parametrize('kind', [torch.bfloat16, torch.float8_e4m3fn, torch.complex64])
def test_a_model_may_have_any_type_of_numbers(made, tmp_path, kind):
    def model(value):
        module = torch.nn.Module()
        module.register_buffer('table', torch.full((3, 2), value).to(kind))
        return module
    server, mine = made(tmp_path), model(1.)
    with follow(mine) as fleet:
        server.give(model(math.nan), .5)
        eventually(lambda: "'table' has a value that is NaN" in fleet.reason)
        server.give(model(2.), .5)
        assert fleet.wait(LIMIT) and fleet.take()
        assert torch.equal(mine.table.to(torch.complex64), torch.full((3, 2), 2 + 0j))


def test_what_cannot_be_kept_is_said(made, tmp_path):
    (tmp_path / 'file').touch()
    server, mine = made(tmp_path / 'a'), net()
    server.give(net(), .5)
    with follow(mine, keep=tmp_path / 'file' / 'kept') as fleet:
        assert fleet.wait(LIMIT) and fleet.take()
        eventually(lambda: 'cannot keep the version in use: Not a directory' in fleet.reason)


def test_nothing_is_left_of_a_reader(made, tmp_path):
    server, mine = made(tmp_path), net()
    server.give(net(), .5)
    with follow(mine) as fleet:
        assert fleet.wait(LIMIT) and fleet.take()
        reader = weakref.ref(fleet._reader)
    del fleet
    eventually(lambda: gc.collect() is not None and reader() is None)


def test_a_name_that_is_given_to_the_node_of_a_program_is_not_that_of_the_reader(monkeypatch):
    monkeypatch.setattr(sys, 'argv', ['program', '--ros-args', '-r', '__node:=mine'])
    with follow(net(), robot='robot1') as fleet:
        assert fleet._reader._node.get_fully_qualified_name() == '/robot1/model_reader'


@pytest.mark.parametrize('robot', ['my robot', '1st', '_hidden'])
def test_a_robot_has_a_name(robot):
    with pytest.raises(ValueError, match='robot must be a namespace'), follow(net(), robot=robot):
        pass


def test_an_announcement_overtakes_the_parts_on_a_slow_link(made, tmp_path):
    link, large = Counting(link_trace(LinkConfig(rate=4.0))), torch.nn.Linear(1000, 1000)
    server, first, mine = Offering(tmp_path, link_of=lambda robot: link), net(), net()
    try:
        early = server.give(first, .5)
        with follow(mine) as fleet:
            assert fleet.wait(LIMIT) and fleet.take()
            server.give(large, .6)
            eventually(lambda: fleet._reader.fetch.got > 100_000)
            before = link.bytes
            server.announce(early, pinned=True)
            eventually(lambda: fleet.newest.number == 1)
            assert link.bytes - before < 200_000      # all questions are 500 kB
            eventually(lambda: not any(r.wants for r in server.offer._readers.values()))
            assert link.bytes - before < 200_000
    finally:
        server.close()


def test_a_large_version_is_read_beside_the_servers_node(made, tmp_path, monkeypatch):
    server, go_on = made(tmp_path), threading.Event()
    read = offer.parts_of
    monkeypatch.setattr(offer, 'parts_of', lambda *args: go_on.wait(LIMIT) and read(*args))
    mine, last, done = net(), net(), []
    for value in (.5, .6):
        server.give(net(), value)
    server.give(last, .7)
    server.spinning._executor.create_task(lambda: done.append(True))
    eventually(lambda: done)       # the node goes on
    assert server.offer._source.offered is None
    go_on.set()
    with follow(mine) as fleet:    # which may get an earlier one before
        eventually(lambda: fleet.take() and same(mine, last))


@pytest.mark.parametrize('content', [b'', b'another file'])
def test_a_file_that_was_changed_is_not_offered_and_the_next_is(made, tmp_path, content):
    server, mine, good = made(tmp_path), net(), net()
    version = server.write(net(), .5)
    (server.store.path(version.number) / 'model.safetensors').write_bytes(content)
    server.announce(version)
    eventually(lambda: server.offer.unread)
    server.give(good, .6)
    with follow(mine) as fleet:
        assert fleet.wait(LIMIT) and fleet.take() and same(mine, good)


def test_a_version_that_was_prepared_is_taken_although_the_next_is_here(
        made, tmp_path, monkeypatch):
    monkeypatch.setattr(following, 'GRACE', LIMIT)
    server, mine, prepared = made(tmp_path), net(), []

    def prepare(state):
        if not prepared:
            server.give(net(), .6)
            eventually(lambda: fleet._fetched is not None)
        prepared.append(state)
        return len(prepared)
    with contextlib.closing(Follower(mine, FollowOptions('/rog'), prepare)) as fleet:
        server.give(net(), .5)
        eventually(lambda: fleet._fetched is None and fleet.ready is not None)
        assert fleet.ready.prepared == 1 and len(prepared) == 1
        fleet.taken(fleet.ready)
        assert fleet.wait(LIMIT) and fleet.ready.prepared == 2


def test_a_server_that_was_there_before_but_is_seen_late_is_given_way(made, tmp_path, monkeypatch):
    made(tmp_path)
    monkeypatch.setattr(standing, 'OTHERS', 0.0)
    monkeypatch.setattr(standing, 'YOUNG', LIMIT)
    with standing.Standing('/rog', Versions(tmp_path), None, print) as late, \
            pytest.raises(FollowError, match='at /rog offers a model already'):
        late.run()


@pytest.mark.parametrize('margin', [-.1, 1.5])
def test_a_margin_is_a_share(margin):
    with pytest.raises(ValueError, match='margin must be 0 to 1'), follow(net(), margin=margin):
        pass
