"""`bench_calls` counts correctly, and all its contestants return equal outputs."""

import os
import socket
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from fleet_env.links.trace import LinkTrace
from tcp_link import DOWN, OUTAGES, SECONDS, UP, Forwarder, with_outages

sys.path.insert(0, str(Path(__file__).parents[1] / 'bench'))
import bench_calls  # noqa: E402

MODEL = 'mobilenet_v3_small'


def test_forwarder_carries_bytes_unchanged_and_counts_round_trips():
    with socket.create_server(('127.0.0.1', 0)) as server:
        def echo():
            peer, _ = server.accept()
            with peer:
                while data := peer.recv(1 << 16):
                    peer.sendall(data)
        threading.Thread(target=echo, daemon=True).start()
        forwarder = Forwarder(server.getsockname()[1], delay=0.001)
        forwarder.begin(LinkTrace([0.0], [400.0]), time.monotonic())
        with socket.create_connection(('127.0.0.1', forwarder.port), 30) as client:
            for number in range(3):
                sent = np.random.default_rng(number).bytes(1000)
                client.sendall(sent)
                came = b''
                while len(came) < len(sent):
                    came += client.recv(len(sent) - len(came))
                assert came == sent
    assert forwarder.bytes[UP] == forwarder.bytes[DOWN] == 3000
    assert forwarder.turns == 1 + 3, 'the connection, and each request'


def test_trace_with_outages_is_dead_in_them_and_as_before_elsewhere():
    trace = with_outages(LinkTrace([0.0], [64.0]), lead=10.0)
    for at, last in OUTAGES:
        assert [trace.rate(10.0 + t) for t in (at - 0.1, at, at + last - 0.1, at + last)] == [
            64.0, 0.0, 0.0, 64.0]


def test_control_counts_the_ticks_without_a_new_result():
    came = np.arange(0.05, SECONDS, 0.1)                 # one result in each tick
    assert bench_calls.control(came, came > 0)['starved'] == 0
    at, last = OUTAGES[1]
    # no result comes during the outage and in the 2 s after it
    kept = came[(came < at) | (came > at + last + 2)]
    found = bench_calls.control(kept, kept > 0)
    assert found['starved'] == round((last + 2) * 10)
    row = found['outages'][f'{last:g} s']
    assert (row['starved_inside'], row['goes_on_s']) == (round(last * 10), pytest.approx(2.05))
    assert found['outages']['before']['starved'] == 0


def test_control_names_what_never_goes_on_and_what_goes_on_alone():
    at, last = OUTAGES[-1]
    came = np.arange(0.05, SECONDS, 0.1)
    row = bench_calls.control(came, came < at)['outages'][f'{last:g} s']
    assert row['goes_on_s'] < 0.1 and row['with_server_s'] is None
    row = bench_calls.control(came[came < at], came[came < at] > 0)['outages'][f'{last:g} s']
    assert row['goes_on_s'] is None and row['starved'] == row['ticks']


@pytest.mark.long
@pytest.mark.parametrize('camera', [False, True])
@pytest.mark.parametrize('who', bench_calls.WHO)
def test_contestant_gives_the_outputs_of_the_model(who, camera, tmp_path, monkeypatch):
    """With ``camera``, cameras give JPEGs, from which all contestants compute."""
    if who in bench_calls.RIVALS and bench_calls.RIVALS[who][1] not in os.environ:
        pytest.skip(f'{bench_calls.RIVALS[who][1]} names no Python with this rival')
    monkeypatch.setattr(bench_calls, 'SETTLE', {})
    with bench_calls.private_domain():
        said = bench_calls.prepare(MODEL, tmp_path, camera)
        found = bench_calls.steady(who, tmp_path, LinkTrace([0.0], [320.0]), 2)
    assert found['error'] <= (said['jpeg_error'] * 1.01 if 'jpeg' in who else 1e-4)
    assert found['median_ms'] > 0
