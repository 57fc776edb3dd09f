"""Which worker may continue: the decisions of each method for a fleet without a network."""

import heapq
import math

import numpy as np
import pytest
from fleet_testing import examples
from hypothesis import given
from hypothesis import strategies as st
from rog_core.codecs import RAW
from rog_core.errors import ConfigError
from rog_core.methods import Team, create
from rog_core.methods.base import Model, Standing
from rog_core.methods.dssp import controller
from rog_core.methods.rsp import ROUNDS
from rog_core.model.partition import partition_of
from rog_core.server.aggregation import Aggregation, ServerState

UNHURRIED = examples(100)

# -- a fleet in which only computing and waiting for other workers take time


class Drive:
    """Plays workers under one method.

    ``times``: for each worker, a list of the seconds that its iterations take, used in turn.
    ``waited``: seconds that each worker waited. ``ahead``: when a worker continues, it has a lead
    over the slowest worker; ``ahead`` is the largest of these leads, in iterations. ``checked``:
    function that is called with (method, name, fleet) for every worker that must wait.
    """

    def __init__(self, method, times, checked=lambda *held: None):
        self.method, self.times, self.checked = create(method), times, checked
        self.fleet = {name: Standing(0, 0, rate=1.0 + k, loss=1.0 / (1 + k))
                      for k, name in enumerate(times)}
        self.waited, self.ahead = dict.fromkeys(times, 0.0), 0
        self.waiting: dict = {}  # for each waiting worker: time at which it began to wait
        self.events: list = []
        for name in times:
            self.go_on(name, 0.0)

    def go_on(self, name, now):
        done = self.fleet[name].iteration
        self.ahead = max(self.ahead, done - min(p.slowest for p in self.fleet.values()))
        heapq.heappush(self.events, (now + self.times[name][done % len(self.times[name])], name))

    def run(self, pushes):
        for _ in range(pushes):
            assert self.events, f'everybody waits: {self.fleet}'
            now, name = heapq.heappop(self.events)
            done = self.fleet[name].iteration + 1
            former = self.fleet[name]
            self.fleet[name] = Standing(done, done, former.rate, former.loss)
            self.waiting[name] = now
            self.method.on_push(name, self.fleet, now)
            for other in list(self.waiting):
                if self.method.held_up_by(other, self.fleet):
                    self.checked(self.method, other, self.fleet)
                else:
                    seconds = now - self.waiting.pop(other)
                    self.waited[other] += seconds
                    self.method.on_wait(other, seconds)
                    self.go_on(other, now)
        return self


def lead(name, fleet):
    """Return the number of iterations by which a worker is ahead of the slowest."""
    return fleet[name].iteration - min(p.slowest for p in fleet.values())


seconds = st.floats(0.01, 30.0)
speeds = st.lists(st.lists(seconds, min_size=1, max_size=4), min_size=1, max_size=5).map(
    lambda times: {f'robot{k}': values for k, values in enumerate(times)})
ranges = st.tuples(st.integers(0, 6), st.integers(0, 12)).map(lambda r: (r[0], r[0] + r[1]))


@UNHURRIED
@given(speeds, ranges, st.sampled_from(['dssp', 'flown', 'rsp:auto', 'ssp', 'rsp', 'bsp']))
def test_thresholds_stay_in_the_range_and_nobody_waits_for_ever(times, bounds, family):
    low, high = bounds
    if family in ('ssp', 'rsp'):
        high = low
    if 'rsp' in family:  # in RSP with threshold T, a row is at most T - 1 iterations behind
        text = f'{family}:{low + 1}' + f':{high + 1}' * (family != 'rsp')
    else:
        text = {'ssp': f'ssp:{low}', 'bsp': 'bsp'}.get(family, f'{family}:{low}:{high}')
    low, high = (0, 0) if family == 'bsp' else (low, high)

    def held(method, name, fleet):
        assert lead(name, fleet) > low, 'one that is within the lowest threshold waits'

    drive = Drive(text, times, held).run(200)
    assert drive.ahead <= high


# -- DSSP


def brute_force(latest, interval, slowest_latest, slowest_interval, most):
    """Compute Algorithm 2 of the DSSP paper literally, in two nested loops."""
    own = [latest + r * interval for r in range(most + 1)]
    slowest = [slowest_latest + slowest_interval + k * slowest_interval for k in range(most + 1)]
    best, found = math.inf, 0
    for r in range(most + 1):
        for k in range(most + 1):
            if abs(slowest[k] - own[r]) < best:
                best, found = abs(slowest[k] - own[r]), r
    return found


moments = st.floats(0, 1e4) | st.integers(0, 40).map(float)
intervals = st.floats(1e-3, 1e3) | st.integers(1, 20).map(float)


@UNHURRIED
@given(moments, intervals, moments, intervals, st.integers(0, 30))
def test_the_controller_of_dssp_equals_a_brute_force_search(latest, interval, other, gap, most):
    arguments = (latest, interval, other, gap, most)
    assert controller(*arguments) == brute_force(*arguments)


def test_the_controller_finds_the_example_of_the_paper():
    """Check the example in Figure 2 of DSSP: the fast worker may run three more iterations.

    The third of these iterations ends exactly when the slowest worker pushes.
    """
    assert controller(10.0, 1.0, 9.0, 4.0, 4) == 3


@pytest.mark.parametrize(('fast', 'slow'), [(1.0, 1.9), (1.0, 2.5), (0.7, 3.1)])
def test_with_two_speeds_dssp_waits_less_than_the_ssp_of_its_lowest_threshold(fast, slow):
    times = {'fast': [fast], 'slow': [slow]}
    waited = {method: Drive(method, times).run(150).waited
              for method in ('ssp:3', 'dssp:3:15', 'dssp:3:3', 'asp', 'bsp')}
    assert waited['asp']['fast'] == 0 < waited['dssp:3:15']['fast'] < waited['ssp:3']['fast']
    assert waited['ssp:3']['fast'] < waited['bsp']['fast']
    assert waited['dssp:3:3'] == waited['ssp:3']
    assert all(w['slow'] == 0 for method, w in waited.items() if method != 'bsp')


@pytest.mark.parametrize(('leader', 'held'), [(9, []), (10, ['slow'])])
def test_only_the_fastest_worker_is_given_extra_iterations(leader, held):
    method, fleet = create('dssp:3:15'), {}
    for name, times in (('slow', (0.0, 8.0)), ('leader', (0.0, 9.0)), ('robot', (8.0, 9.0))):
        for now in times:
            fleet = {'slow': Standing(2, 2), 'leader': Standing(leader, leader),
                     'robot': Standing(9, 9)}
            method.on_push(name, fleet, now)
    assert method.held_up_by('robot', fleet) == held


# -- FLOWN


def flown_bounds(fleet, low, high):
    """Return, for each robot, how many iterations another robot may be ahead of it.

    Find these bounds by trial.
    """
    method = create(f'flown:{low}:{high}')
    for name in fleet:
        method.on_push(name, fleet, 0.0)
    bounds = {}
    for name in fleet:
        ahead = 0
        while not method.held_up_by('probe', {name: Standing(0, 0), 'probe': Standing(ahead, 0)}):
            ahead += 1
            assert ahead < 100
        bounds[name] = ahead
    return bounds


rates = st.integers(0, 5).map(float)
losses = st.integers(0, 5).map(float) | st.just(float('nan'))
devices = st.lists(st.builds(Standing, st.just(3), st.just(3), rates, losses), min_size=1,
                   max_size=6).map(lambda d: {f'robot{k}': p for k, p in enumerate(d)})


@UNHURRIED
@given(devices, ranges)
def test_more_bandwidth_and_more_to_contribute_never_loosen_flown_s_threshold(fleet, bounds):
    low, high = bounds
    found = flown_bounds(fleet, low, high)
    assert all(low + 1 <= bound <= high + 1 for bound in found.values())
    for name, mine in fleet.items():
        for other, theirs in fleet.items():
            if mine.rate >= theirs.rate and mine.loss >= theirs.loss:
                assert found[name] <= found[other], (name, other)


def test_flown_uses_its_whole_range():
    fleet = {'weak': Standing(0, 0, 1.0, 0.1), 'strong': Standing(0, 0, 9.0, 2.0)}
    assert flown_bounds(fleet, 2, 20) == {'weak': 21, 'strong': 3}


# -- rsp:auto


def decide(method, stall, loss, robots=2, lie=None):
    """Let all robots push until the method decides about its bound; return the bound after that.

    ``stall``: share of the time that the robots have waited. ``lie``: the loss that one of the
    robots reports instead of ``loss``.
    """
    names = [f'robot{k}' for k in range(robots)]
    fleet = {name: Standing(1, 1, loss=loss) for name in names}
    if lie is not None:
        fleet[names[0]] = Standing(1, 1, loss=lie)
    start = getattr(method, 'test_time', 0.0)
    if not start:  # the method measures time from the first push on
        method.on_push(names[0], fleet, 0.0)
        start = 1.0
    method.on_wait(names[0], stall * robots * 100.0)
    for push in range(ROUNDS * robots):
        method.on_push(names[push % robots], fleet, start + 100.0 * (push + 1) / (ROUNDS * robots))
    method.test_time = start + 100.0
    return int(method.bound)


NAN = float('nan')


def test_auto_rises_under_stall_and_falls_without():
    method = create('rsp:auto:4:40')
    rising = [decide(method, 0.3, NAN) for _ in range(12)]
    assert rising == sorted(rising) and rising[0] > 4 and rising[-1] == 40
    falling = [decide(method, 0.0, NAN) for _ in range(40)]
    assert falling == sorted(falling, reverse=True) and falling[0] == 39 and falling[-1] == 4


def test_auto_stays_where_it_is_while_the_stall_is_neither_high_nor_low():
    method = create('rsp:auto:4:40')
    high = [decide(method, 0.3, NAN) for _ in range(5)][-1]
    assert [decide(method, 0.035, NAN) for _ in range(5)] == [high] * 5


def test_auto_falls_when_the_loss_rises_whatever_the_stall():
    method = create('rsp:auto:4:40')
    up = [decide(method, 0.3, 2.0 - 0.1 * k) for k in range(8)]
    assert up == sorted(up)
    down = [decide(method, 0.3, 3.0 * 1.3 ** k) for k in range(20)]
    assert down[0] < up[-1] and down == sorted(down, reverse=True) and down[-1] == 4


@pytest.mark.parametrize('robots', [2, 3, 5])
@pytest.mark.parametrize('lie', [lambda k: 3.0 * 1.3 ** k, lambda k: 1e308, lambda k: math.inf])
def test_auto_rises_although_one_robot_claims_a_loss_that_rises_or_is_huge(robots, lie):
    method = create('rsp:auto:4:40')
    rising = [decide(method, 0.3, 2.0 - 0.1 * k, robots, lie(k)) for k in range(12)]
    assert rising == sorted(rising) and rising[-1] == 40


@UNHURRIED
@given(st.integers(1, 12), st.integers(0, 30),
       st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5) | st.just(NAN)), max_size=30),
       st.sampled_from(['', '+pipeline', '+pipeline+sparse', '-order', '-early']))
def test_auto_stays_in_its_range_and_tells_the_workers_plain_names(low, width, rounds, options):
    method = create(f'rsp:auto:{low}:{low + width}{options}')
    assert method.asked == f'rsp:auto:{low}:{low + width}{options}'
    for stall, loss in [(0.0, NAN), *rounds]:
        bound = decide(method, stall, loss, 3)
        assert low <= bound <= low + width
        assert str(method) == f'rsp:{bound}{options}'
        plain = create(str(method))
        assert (plain.bound, plain.options) == (method.bound, method.options)
        assert plain.sending() == method.sending()


# -- all methods


@pytest.mark.parametrize('sync', ['bsp', 'ssp:2', 'dssp:1:4', 'flown', 'rsp:3', 'rsp:auto', 'gsgm',
                                  'rsp:3+local=2'])
def test_a_looser_bound_that_still_holds_is_honoured(sync):
    fleet = {'ahead': Standing(30, 30), 'behind': Standing(0, 0)}
    assert create(sync).held_up_by('ahead', fleet) == ['behind']
    assert create(sync).held_up_by('ahead', fleet, least=31) == []
    assert create(sync).held_up_by('behind', fleet) == []


# -- the barrier of SVRG


def test_everybody_meets_before_and_after_a_full_gradient_and_nowhere_else():
    method = create('asp+svrg=3')
    for iteration in range(12):
        fleet = {'robot': Standing(iteration, iteration), 'late': Standing(iteration - 1, 0)}
        full = iteration % 4 == 1
        held = method.held_up_by('robot', fleet)
        assert held == (['late'] if full or (iteration + 1) % 4 == 1 else []), iteration
        assert method.held_up_by('late', fleet) == []


def test_a_barrier_counts_iterations_and_not_rows_that_a_former_method_left_behind():
    method = create('gsgm+svrg=3')
    fleet = {'robot': Standing(9, 5), 'other': Standing(9, 4)}
    assert method.held_up_by('robot', fleet) == []


def test_the_white_list_does_not_wait_for_who_waits_at_the_barrier():
    """Check that a robot does not wait for another robot that waits at the barrier of SVRG.

    A robot that joined late may be at the barrier without a contribution to the round.
    """
    method = create('gsgm+svrg=3')
    fleet = {'robot': Standing(7, 7), 'came late': Standing(8, 8)}
    method.load_state({'contributed': ['robot'], 'queue': []})
    method.on_push('robot', fleet, 0.0)
    method.contribute = method.end_round = lambda *_: None  # there is no model
    method.settle(fleet, frozenset(), 2)
    assert method.held_up_by('came late', fleet) == ['robot']
    assert method.held_up_by('robot', fleet) == []


def test_a_round_without_contributions_does_not_end():
    method = create('gsgm+svrg=3')
    fleet = {'robot': Standing(8, 8), 'other': Standing(7, 7)}
    method.end_round = lambda: pytest.fail('the round has ended')
    method.settle(fleet, frozenset(), 2)
    method.settle({}, frozenset(), 1)


# -- checkpoints


def aggregation(sync):
    partition = partition_of([('w', (8,))], 'row', 'raw')
    return Aggregation(sync, Model(partition, np.zeros(8, np.float32), RAW),
                       Team({'a': 1.0, 'b': 1.0}, 'raw', 0.5))


@pytest.mark.parametrize(('sync', 'state'), [
    ('gsgm', {'queue': 5}), ('gsgm', {'contributed': None}), ('gc:0', {'round': 'x'}),
    ('gc:0', {'round': [1]})])
def test_a_state_that_makes_no_sense_is_refused(sync, state):
    ours = aggregation(sync)
    with pytest.raises(ConfigError, match='in the checkpoint is invalid'):
        ours.load(ServerState(7, sync, np.zeros(1, np.int64), {}, state))


@pytest.mark.parametrize(('sync', 'reason'), [
    ('fast', "'fast' is unknown"), ('rsp:0', '1 to 1000'),
    ('gone.away:Method', 'module gone.away must be imported')])
def test_a_state_of_a_method_that_is_not_there_is_refused_and_the_former_one_stays(sync, reason):
    ours = aggregation('rsp:4')
    method = ours.method
    with pytest.raises(ConfigError, match=reason):
        ours.load(ServerState(7, sync, np.zeros(1, np.int64), {}))
    assert ours.method is method


def test_a_coded_method_goes_on_with_the_round_that_was_open():
    ours = aggregation('gc:0')
    ours.load(ServerState(7, 'gc:0', np.zeros(1, np.int64), {}, {'round': 7}))
    assert ours.method.grant('a', 3)[0] == 7
    assert ours.state()[0] == {'round': 7}
