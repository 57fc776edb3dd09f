"""After any interruption of an upload, the server has the whole model or nothing of it."""

import json

import pytest
import torch
from fleet_compute.inlets import shortened
from fleet_link.errors import PeerError
from hypothesis import given
from hypothesis import strategies as st
from lopinfer_node.model.traced import trace
from lopinfer_node.runtime.store import Store
from lopinfer_node.runtime.upload import MOST_CONTENTS, PART_BYTES, Partials, Sending, Taking


def wide(seed=0, change=0.0):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(900, 200), torch.nn.ReLU(), torch.nn.Linear(200, 4))
    with torch.no_grad():
        model[2].bias += change
    return trace(model.eval(), torch.zeros(1, 900))


MODEL = wide()      # its largest weight is three parts


class Server:
    """What a server keeps between the sessions of its uploads."""

    def __init__(self, folder, **limits):
        self.store, self.news, self.refused = Store(folder, **limits), [], []
        self.partials = Partials(1 << 20)

    def taking(self):
        return Taking(self.store, self.partials, lambda: [], lambda: self.news.append(
            self.store.digests()), self.refused.append)


def session(server, traced, most=1 << 30, change=lambda message: message):
    """Let both sides talk, for at most so many messages of the robot; return the robot's side."""
    robot, taking = Sending(traced), server.taking()
    for _ in range(most):
        if robot.ended is not None:
            break
        part = robot.part()
        assert part is not None, 'both sides wait'
        taking.take(bytes(change(part)))
        while (answer := taking.part()) is not None:
            robot.take(bytes(answer))
    taking.close()
    return robot


def test_a_model_is_stored_as_it_is(tmp_path):
    server = Server(tmp_path)
    robot = session(server, MODEL)
    assert robot.ended == '' and robot.sent == robot.total == sum(
        t.nbytes for t in MODEL.parameters.values())
    assert server.news == [{MODEL.digest}]
    found = server.store.load(MODEL.digest).parameters
    assert all(torch.equal(found[name], t) for name, t in MODEL.parameters.items())
    again = session(server, MODEL)
    assert again.ended == '' and not again.total    # a second robot sends no weight


@given(lengths=st.lists(st.integers(0, 8), max_size=8), restart=st.integers(0, 8))
def test_sessions_that_end_at_any_time_lose_no_whole_part(lengths, restart, tmp_path_factory):
    folder, sent = tmp_path_factory.mktemp('store'), 0
    server, total = Server(folder), sum(t.nbytes for t in MODEL.parameters.values())
    for number, length in enumerate(lengths):
        if number == restart:
            server = Server(folder)     # only whole weights survive a restart
            sent = 0
        robot = session(server, MODEL, length)
        sent += robot.sent
        assert robot.ended is None or robot.ended == '' and server.store.has(MODEL.digest)
    robot = session(server, MODEL)
    assert robot.ended == '' and sent + robot.sent <= total
    assert server.store.load(MODEL.digest).digest == MODEL.digest and not server.partials.used


def test_of_a_changed_model_only_the_changed_weights_are_sent(tmp_path):
    server, other = Server(tmp_path), wide(change=1.0)
    session(server, MODEL)
    assert session(server, other).total == 16
    for traced in (MODEL, other):
        assert server.store.load(traced.digest).digest == traced.digest


def test_equal_weights_of_a_model_are_sent_once(tmp_path):
    one = torch.nn.Linear(64, 64)
    twin = torch.nn.Linear(64, 64)
    twin.load_state_dict(one.state_dict())
    traced, server = trace(torch.nn.Sequential(one, twin).eval(), torch.zeros(1, 64)), \
        Server(tmp_path)
    assert session(server, traced).total == 4 * 64 * 65
    assert server.store.load(traced.digest).digest == traced.digest


def test_a_weight_that_was_damaged_is_refused_and_is_sent_again(tmp_path):
    server, damaged = Server(tmp_path), []

    def damage(message):
        if len(message) > 100_000 and not damaged:
            damaged.append(message)
            return bytes(PART_BYTES)
        return message
    assert 'not what was said' in session(server, MODEL, change=damage).ended
    assert damaged and not server.store.digests() and not server.partials.used
    assert session(server, MODEL).ended == ''


def test_weights_cross_the_link_in_fewer_bytes(tmp_path):
    sizes = []
    session(Server(tmp_path), MODEL, change=lambda message: sizes.append(len(message)) or message)
    assert sum(sizes) < .95 * sum(t.nbytes for t in MODEL.parameters.values())


@pytest.mark.parametrize('wrong', [
    lambda part: part[:-1], lambda part: part + b'x', lambda part: b'', lambda part: b'\xff' * 99])
def test_parts_of_a_wrong_length_are_refused(wrong, tmp_path):
    part = bytes(shortened(torch.randn(PART_BYTES // 4).numpy().tobytes()))
    server, taking = Server(tmp_path), None
    robot, taking = Sending(MODEL), server.taking()
    assert not taking.begun
    for _ in range(3):
        taking.take(bytes(robot.part()))
        assert taking.begun
    taking.part()
    taking.take(wrong(part))
    assert 'is damaged' in json.loads(taking.part())['refused']
    taking.take(part)       # what comes after a refusal changes nothing
    assert taking.part() is None and not server.store.digests()


@pytest.mark.parametrize('first', [
    b'', b'[]', b'{}', b'{"digest": 7}', b'{"digest": "../../etc"}', b'[' * 100_000, b'\xff'])
def test_a_model_without_a_digest_is_refused(first, tmp_path):
    server = Server(tmp_path)
    taking = server.taking()
    taking.take(first)
    assert json.loads(taking.part())['refused']
    assert not [p for p in tmp_path.rglob('*') if p.is_file()]


@pytest.mark.parametrize(('limits', 'reason'), [({'memory': 1000}, 'parameter memory'),
                                                ({'disk': 1000}, 'parameter disk')])
def test_a_model_that_is_too_large_is_refused_before_its_weights_are_sent(limits, reason, tmp_path):
    robot = session(Server(tmp_path, **limits), MODEL)
    assert reason in robot.ended and not robot.sent


def test_what_waits_for_the_rest_has_bounded_memory_and_gives_way(tmp_path):
    server, other = Server(tmp_path), wide(seed=1)
    server.partials = Partials(3 * PART_BYTES)      # of the largest weight, 720,000 B
    assert session(server, other, 5).sent > PART_BYTES
    assert server.partials.used and len(server.partials.parked) == 1
    open_one = server.taking()
    robot = Sending(other)
    for _ in range(4):      # goes on with what was parked
        open_one.take(bytes(robot.part()))
        while (answer := open_one.part()) is not None:
            robot.take(bytes(answer))
    assert 'too many robots' in session(server, MODEL).ended
    open_one.close()
    assert session(server, MODEL).ended == '' and not server.partials.used


def test_long_contents_are_refused(tmp_path):
    taking = Server(tmp_path).taking()
    for message in (b'{"digest": "%s"}' % (b'0' * 64), b'{}', bytes(MOST_CONTENTS + 1)):
        taking.take(message)
    assert 'must have at most' in json.loads(taking.part())['refused']


def test_a_full_disk_is_the_reason_and_nothing_is_lost(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, 'No space left on device')
    server = Server(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr('pathlib.Path.write_bytes', full)
        reason = session(server, MODEL).ended
    assert reason == f'the server cannot keep it in {tmp_path}: No space left on device'
    assert server.refused == [reason]
    assert not server.store.digests() and session(server, MODEL).ended == ''


@pytest.mark.parametrize('answer', [
    b'', b'[]', b'{"missing": 1}', b'{"missing": [["none", 0]]}', b'{"missing": [["0.bias", -1]]}',
    b'{"missing": [["0.bias", 800]]}', b'{"missing": [["0.bias", 0.5]]}', b'7', b'[' * 100_000])
def test_an_answer_that_no_server_gives_ends_the_session(answer):
    robot = Sending(MODEL)
    with pytest.raises(PeerError):
        robot.take(answer)
    assert robot.ended is None
