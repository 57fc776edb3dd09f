"""Client and server machines exchange messages over a bad channel in virtual time.

All results are right, and no request hangs.
"""

import pytest
from fleet_testing import examples
from hypothesis import given
from hypothesis import strategies as st
from lopinfer_node.runtime.client import OPEN
from numpy_program import small_graph
from virtual import Channel, World

GRAPH = small_graph()
BAD = st.builds(Channel, loss=st.floats(0, 0.3), double=st.floats(0, 0.3),
                corrupt=st.floats(0, 0.2), jitter=st.floats(0, 0.02),
                latency=st.floats(0, 0.02), rate=st.floats(1e5, 1e8))
FEW = examples(60)


def all_open(world):
    return lambda: all(c.machine.state == OPEN for c in world.clients)


def infer(world, rounds=5, patience=5.0):
    """Let each client make `rounds` requests, one after another.

    Fails if a client gets wrong results, or if a round takes more than `patience` seconds.
    """
    for _ in range(rounds):
        for client in world.clients:
            client.request()
        world.run(lambda: all(c.idle for c in world.clients), world.now + patience)
    for client in world.clients:
        assert client.results == client.wanted


def wait(world, seconds):
    end = world.now + seconds
    world.at(end, lambda: None)
    world.run(lambda: world.now >= end, end + 1)


@FEW
@given(st.integers(0, 2 ** 32), st.integers(1, 3))
def test_on_a_good_link_every_request_is_shared_and_right(seed, clients):
    world = World(GRAPH, seed, clients=clients)
    # in these 4 s each client gets its first plan table, and then the table that replaces the first
    wait(world, 4.0)
    world.run(all_open(world), 10.0)
    infer(world)
    for client in world.clients:
        assert client.machine.report.offloaded == 5
        assert client.machine.report.fallbacks == 0
        assert not client.machine.dropped['corrupt']


@pytest.mark.parametrize('down', [2e6, 50e6])
def test_each_direction_of_the_link_is_measured_by_itself(down):
    world = World(GRAPH, 1, Channel(rate=10e6, down=down))
    wait(world, 8.0)
    up_rate, down_rate = world.clients[0].machine.rates
    assert up_rate == pytest.approx(10e6, rel=0.1) and down_rate == pytest.approx(down, rel=0.1)


@FEW
@given(st.integers(0, 2 ** 32), BAD, st.integers(1, 3))
def test_results_are_right_whatever_the_channel_does(seed, channel, clients):
    world = World(GRAPH, seed, channel, clients)
    infer(world, 2)                     # these requests begin before a client is connected
    wait(world, 3.0)
    infer(world, 6)


@FEW
@given(st.integers(0, 2 ** 32), st.floats(0, 0.06), st.integers(1, 2))
def test_a_server_that_dies_and_comes_back_is_used_again(seed, moment, clients):
    world = World(GRAPH, seed, clients=clients)
    world.run(all_open(world), 10.0)
    world.at(world.now + moment, world.kill_server)
    infer(world, 6)
    world.kill_server()
    world.run(lambda: not any(c.machine.state == OPEN for c in world.clients), world.now + 60.0)
    world.start_server()
    world.run(all_open(world), world.now + 60.0)
    wait(world, 31.0)     # after a fallback, a client works alone for a shorter time
    before = [c.machine.report.offloaded for c in world.clients]
    infer(world, 20)
    for client, shared in zip(world.clients, before, strict=True):
        assert client.machine.report.offloaded == shared + 20


@FEW
@given(st.integers(0, 2 ** 32))
def test_a_model_that_the_server_lacks_is_sent_first(seed):
    world = World(GRAPH, seed, stored=())
    infer(world, 1)
    world.run(all_open(world), 10.0)
    infer(world)
