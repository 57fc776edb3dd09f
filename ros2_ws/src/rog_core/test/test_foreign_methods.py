"""Methods of other packages: valid ones train and keep all invariants, invalid ones are refused."""

import itertools
import sys
from collections import Counter

import numpy as np
import pytest
from fleet import Fleet
from fleet_testing import mostly_long
from hostile import fingerprint
from ledger import method_named
from rog_core.errors import ConfigError, LocalProtocolError
from rog_core.loopback import Loopback
from rog_core.method_check import check_named
from rog_core.methods import Method, Team, create
from rog_core.methods.base import Standing
from rog_core.protocol.config import SgdConfig
from rog_core.protocol.messages import Command, End, Sending
from rog_core.protocol.steps import STEPS, Gradient, Local
from schedules import check_end, play, run_until

numbers = itertools.count()

CALM = '''
from rog_core.messages import Sending
from rog_core.methods import Method
from rog_core.steps import Gradient, Local


class Calm(Method):
    """``Calm:T:H``: bound T; every second iteration is H local steps; +half, +rest=N."""

    known = ('half', 'rest')

    def __init__(self, spec, team):
        super().__init__(spec, team)
        self.asked_for, self.pushes = 0, {}

    @classmethod
    def numbered(cls):
        return ('rest',)

    def bounds(self):
        bound, steps = self.spec.arguments
        self.steps = self.spec.integer(steps, 1)
        return self.spec.integer(bound, 1), self.spec.integer(bound, 1)

    @property
    def time_limited(self):
        return 'half' in self.options

    def sending(self):
        return Sending(0.5, int(self.bound), True) if 'half' in self.options else Sending()

    def grant(self, robot, iteration):
        return iteration + 1, Gradient() if iteration % 2 else Local(self.steps)

    def held_up_by(self, robot, fleet, least=0.0):
        self.asked_for += 1
        slow = self.behind(robot, fleet, max(self.bound, least))
        rest = self.numbers.get('rest', 0)
        if slow or not rest or (fleet[robot].iteration + 1) % rest:
            return slow
        return [name for name in fleet if fleet[name].iteration < fleet[robot].iteration - 1]

    def on_push(self, robot, fleet, now):
        self.pushes[robot] = self.pushes.get(robot, 0) + 1

    def state(self):
        return {'pushes': self.pushes}

    def load_state(self, state):
        self.pushes = {str(name): int(count) for name, count in state.get('pushes', {}).items()}
'''


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return a function that writes the module of another package and returns its name."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(text):
        name = f'their_methods_{next(numbers)}'
        (tmp_path / f'{name}.py').write_text(text)
        return name

    return write


# -- a valid method


@pytest.mark.parametrize('spec', mostly_long(
    ['Calm:3:4', 'Calm:4:2+half', 'Calm:1:1+rest=3', 'Calm:6:3+half+rest=4'],
    'Calm:6:3+half+rest=4'))
@pytest.mark.parametrize('codec', ['onebit', 'raw'])
def test_it_trains_a_fleet_with_all_invariants(package, spec, codec):
    sync = f'{package(CALM)}:{spec}'
    fleet = Fleet(7, 3, sync, codec, loss=0.1, duplicate=0.1, rate=1e5)
    play(fleet, [('run', 0, 1.0), ('checkpoint', 0, 0.5), ('crash', 0, 1.5), ('fade', 1, 1.2),
                 ('slow', 0, 1.0), ('replay', 0, 0.3), ('corrupt', 0, 0.3), ('kill', 2, 1.0),
                 ('restart', 2, 1.0), ('fast', 0, 1.0), ('corrupt', 0, 0.3)])
    assert str(fleet.server.method) == sync
    assert {type(m.step) for m in fleet.server.members.values()} <= {Gradient, Local}
    for happens in ('crash', 'fade', 'corrupt refused', 'staleness checked', 'mirror checked'):
        assert fleet.counts[happens], happens
    check_end(fleet)


TIGHT = '''
from rog_core.methods.ssp import Ssp


class Tight(Ssp):
    """``Tight:S``: robot1 may be only half as far ahead as the others."""

    def bound_of(self, robot):
        return self.bound / 2 if robot == 'robot1' else self.bound
'''


@pytest.mark.parametrize(('ahead', 'computed'), [('robot1', 3), ('robot2', 6)])
def test_a_method_may_hold_one_robot_closer_than_the_others(package, ahead, computed):
    """Let only one robot compute, until it reaches the staleness bound that applies to it."""
    sync = f'{package(TIGHT)}:Tight:5'   # the staleness bound is one more than the S of ssp:S
    team = Team(codec='onebit', momentum=0.9, capacities={'robot1': 1.0, 'robot2': 1.0})
    check_named(sync, team)
    fleet = Loopback.small([('w', (4, 32))], sync, team)
    wanted, pushes = {name for name, _ in fleet.start()}, 0
    assert wanted == {'robot1', 'robot2'}
    while ahead in wanted:
        pushes += 1
        assert pushes < 20
        fleet.want(ahead, fleet.workers[ahead].on_gradient(
            np.ones(128, np.float32), SgdConfig(0.1, 0.9, 0.0, True), fleet.now))
        wanted = {name for name, _ in fleet.deliver()}
    assert pushes == computed


def test_a_method_that_names_a_robot_refuses_one_that_the_fleet_does_not_have(package):
    sync = package(TIGHT + '''
    def bounds(self):
        self.team.require_robot(self.spec.arguments[1])
        return 5, 5
''') + ':Tight:5:robot'
    fleet = Team(codec='onebit', capacities={'robot1': 1.0, 'robot2': 1.0})
    check_named(f'{sync}2', fleet)
    check_named(f'{sync}7', Team())   # any robot may join
    with pytest.raises(ConfigError, match='^robot must be one of robot1, robot2, got robot7$'):
        check_named(f'{sync}7', fleet)


def test_a_tighter_bound_is_not_for_a_robot_s_own_rows(package):
    """A tighter bound for one robot does not apply to the age of this robot's own rows.

    Only its next push can send these rows, so they may be as old as the fleet's bound allows.
    """
    sync = f'{package(TIGHT.replace("ssp", "rsp").replace("Ssp", "Rsp"))}:Tight:8'
    check_named(sync, Team())
    method = method_named(sync, Team())
    fleet = {'robot1': Standing(9, 4), 'robot2': Standing(6, 6)}
    assert method.held_up_by('robot1', fleet) == []
    assert method.held_up_by('robot1', fleet | {'robot2': Standing(5, 5)}) == ['robot2']
    assert method.held_up_by('robot1', fleet | {'robot1': Standing(9, 1)}) == ['robot1']


def test_a_running_fleet_changes_to_it_and_back_and_a_restart_takes_up_its_state(package):
    sync = f'{package(CALM)}:Calm:4:2+half'
    fleet = Fleet(5, 3, 'rsp:4', rate=2e5)
    fleet.run(2)
    fleet.set_sync(sync)
    fleet.run(3)
    fleet.check()
    pushes = fleet.server.method.state()['pushes']
    assert set(pushes) == set(fleet.robots) and min(pushes.values()) > 1
    # a wrong method on purpose: the restarted server must use the method of the checkpoint
    fleet.sync = 'bsp'
    fleet.restart_server(fleet.checkpoint())
    assert str(fleet.server.method) == sync
    assert fleet.server.method.state()['pushes'] == pushes
    fleet.run(3)
    fleet.check()
    fleet.set_sync('gsgm')
    fleet.run(2)
    check_end(fleet)


def test_robots_are_told_plain_values_and_never_look_for_its_module(package, monkeypatch):
    module = package(CALM)
    sync = f'{module}:Calm:4:2+half'
    fleet = Fleet(3, 2, sync)
    # Create the method before the test watches imports, because the checks of `Fleet` need it, too.
    method_named(sync, fleet.team)
    looked_for, told = [], Counter()

    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            looked_for.append(name)

    monkeypatch.setattr(sys, 'meta_path', [Finder, *sys.meta_path])
    monkeypatch.delitem(sys.modules, module)
    send = fleet.send

    def spy(side, action, robot):
        if side is None and isinstance(action.message, End):
            command = action.message.command
            assert type(command) is Command and type(command.sync) is str
            assert type(command.sending) is Sending
            assert type(command.step) is STEPS[command.step.name]
            told[command.step.name] += 1
        send(side, action, robot)
    fleet.send = spy
    run_until(fleet, lambda: told['local'] > 3 and told['gradient'] > 3, 0.1)
    fleet.check()
    assert module not in looked_for and module not in sys.modules
    assert {robot.machine.sync for robot in fleet.robots.values()} == {sync}


def test_it_has_arguments_and_options_of_its_own_and_says_itself_how_it_is_written(package):
    module = package(CALM)
    check_named(f'{module}:Calm:4:2', Team())
    method = create(f' {module}:Calm:4:2+rest=3+half ')
    assert isinstance(method, Method)
    assert (method.bound, method.steps, method.numbers) == (4, 2, {'rest': 3})
    assert create(str(method)).options == method.options == {'half', 'rest'}
    assert create(str(method)).numbers == {'rest': 3}
    for text, reason in (('Calm:4:2+fast', "no option 'fast'; it has half, rest"),
                         ('Calm:0:2', "'0' in .* must be 1 to 1000"),
                         ('Calm:4:x', "'x' in .* is not a whole number"),
                         ('Calm:4:2+half=3', 'half takes no number'),
                         ('Calm:4', 'cannot be built: ValueError')):
        with pytest.raises(ConfigError, match=reason):
            check_named(f'{module}:{text}', Team())


# -- invalid methods


HEAD = '''
import rog_core.messages, rog_core.steps, rog_core.methods
from rog_core.errors import RemoteProtocolError
from rog_core.messages import Sending
from rog_core.methods import Method
from rog_core.steps import Gradient, Local, Shards, Step
'''

BAD = {  # maps a name to the body of an invalid class, and the expected text of the error
    'raises in __init__': ('''
    def __init__(self, spec, team):
        raise RuntimeError('no such luck')''', 'cannot be built: RuntimeError: no such luck'),
    'is bound by a letter': ('''
    def bounds(self):
        return \'x\'''', r"bounds\(\) must return two numbers, bound and most, got 'x'$"),
    'is bound by one number': ('''
    def bounds(self):
        return 4''', r'bounds\(\) must return two numbers, bound and most, got 4$'),
    'raises in held_up_by': ('''
    def held_up_by(self, robot, fleet, least=0.0):
        return fleet['nobody'].iteration''', 'fails in a rehearsal: KeyError.*nobody'),
    'raises in grant': ('''
    def grant(self, robot, iteration):
        raise ZeroDivisionError('by 0')''', 'fails in a rehearsal: ZeroDivisionError: by 0'),
    'raises in sending': ('''
    def sending(self):
        raise OSError('gone')''', 'fails in a rehearsal: OSError: gone'),
    'raises in take': ('''
    def take(self, robot, ids, codec, data, robots):
        raise ValueError('of no use')''', 'fails in a rehearsal: ValueError: of no use'),
    'raises after some iterations': ('''
    def grant(self, robot, iteration):
        assert iteration < 7, 'it is late'
        return iteration + 1, Gradient()''', 'fails in a rehearsal: AssertionError: it is late'),
    'raises the error of another': ('''
    def grant(self, robot, iteration):
        raise RemoteProtocolError('odd')''', 'fails in a rehearsal: RemoteProtocolError: odd'),
    'lets everybody wait': ('''
    def held_up_by(self, robot, fleet, least=0.0):
        return list(fleet)''', 'stands still; each robot waits for:'),
    'lets everybody wait in the end': ('''
    def held_up_by(self, robot, fleet, least=0.0):
        return list(fleet) if fleet[robot].iteration > 5 else []''', 'stands still'),
    'waits for nobody that there is': ('''
    def held_up_by(self, robot, fleet, least=0.0):
        return ['Godot']''', "stands still.*Godot"),
    'is held up by None': ('''
    def held_up_by(self, robot, fleet, least=0.0):
        return None''', 'held_up_by answers None; it must be a list of names'),
    'is held up by a number': ('''
    def held_up_by(self, robot, fleet, least=0.0):
        return 0''', 'held_up_by answers 0; it must be a list of names'),
    'is held up by a name': ('''
    def held_up_by(self, robot, fleet, least=0.0):
        return \'\'''', "held_up_by answers ''; it must be a list of names"),
    'grants None': ('''
    def grant(self, robot, iteration):
        return None''', r'rehearsal: grant answers None; it must be \(iteration, step\)$'),
    'grants no step': ('''
    def grant(self, robot, iteration):
        return iteration + 1, None''', 'fails in a rehearsal'),
    'grants a step by its name': ('''
    def grant(self, robot, iteration):
        return iteration + 1, \'local\'''', 'fails in a rehearsal'),
    'grants a step of its own': ('''
    def grant(self, robot, iteration):
        class Leap(Step):
            name = \'leap\'
        return iteration + 1, Leap()''', 'it must be one of gradient, shards, full, local'),
    'grants a step that looks like another': ('''
    def grant(self, robot, iteration):
        class Mine(Gradient):
            pass
        return iteration + 1, Mine()''', 'it must be one of gradient, shards, full, local'),
    'grants no local steps': ('''
    def grant(self, robot, iteration):
        return iteration + 1, Local(0)''', 'local steps must be 1 to 10000, got 0'),
    'grants iteration 0': ('''
    def grant(self, robot, iteration):
        return 0, Gradient()''', 'at least 1, got 0'),
    'grants the same iteration again': ('''
    def grant(self, robot, iteration):
        return iteration or 1, Gradient()''', 'an iteration of at least 2, got 1'),
    'sends None': ('''
    def sending(self):
        return None''', 'fails in a rehearsal'),
    'sends a share of 7': ('''
    def sending(self):
        return Sending(7.0)''', 'a share, 0 to 1, got 7.0'),
    'sends a share below 0': ('''
    def sending(self):
        return Sending(-0.5)''', 'a share, 0 to 1, got -0.5'),
    'has a state that is not JSON': ('''
    def state(self):
        return {\'names\': {\'a\', \'b\'}}''', 'fails in a rehearsal: TypeError.*JSON'),
    'does not take up its own state': ('''
    def state(self):
        return {\'a\': 1}
    def load_state(self, state):
        raise ValueError(\'not mine\')''', 'fails in a rehearsal: ValueError: not mine'),
    'refuses the robots of the fleet': ('''
    def refusal(self, robot):
        return \'nobody\'''', 'fails in a rehearsal'),
}


def refuses(fleet, text, reason):
    """Check that the method ``text`` is refused, and that a running fleet keeps its method."""
    with pytest.raises(ConfigError, match=reason) as error:
        check_named(text, fleet.team)
    assert text in str(error.value)
    before, method = fingerprint(fleet.server), fleet.server.method
    with pytest.raises(ConfigError, match=reason):
        fleet.set_sync(text)
    assert fleet.server.method is method
    assert fingerprint(fleet.server) == before


@pytest.fixture(scope='module')
def fleet():
    """Yield a fleet that trains; check at the end that the refused methods did not harm it."""
    fleet = Fleet(6, 2, 'rsp:4')
    fleet.run(1)
    yield fleet
    check_end(fleet, 4)


@pytest.mark.parametrize('name', BAD)
def test_one_that_fails_is_refused_before_any_robot_trains_and_nothing_changes(package, fleet,
                                                                               name):
    body, reason = BAD[name]
    module = package(f'{HEAD}\n\nclass Theirs(Method):{body}\n')
    refuses(fleet, f'{module}:Theirs', f'(?s){reason}')
    fleet.run(0.1)
    fleet.check()


def test_one_that_is_not_there_is_refused_with_what_to_do(package, fleet):
    module = package(HEAD + '\nSomething = 3\n\n\nclass Nothing:\n    pass\n')
    refuses(fleet, 'no_such_package.methods:Theirs',
            "No module named 'no_such_package'; is it installed where the server runs, beside the "
            r'fleet file, or its folder on PYTHONPATH\?')
    refuses(fleet, f'{module}.deeper:Theirs', 'is it installed')
    refuses(fleet, f'{package("import no_such_module")}:Theirs',
            r"importing \w+ failed: No module named 'no_such_module'$")
    refuses(fleet, f'{module}:Missing', f"module {module} has no 'Missing'$")
    refuses(fleet, f'{package(CALM)}:Clam', "has no 'Clam'; did you mean 'Calm'")
    refuses(fleet, f'{module}:Something', f'{module}:Something is not a subclass of rog_core.meth')
    refuses(fleet, f'{module}:Nothing', f'{module}:Nothing is not a subclass of rog_core.methods')
    refuses(fleet, f'{module}:Step', 'is not a subclass of rog_core.methods.Method')
    refuses(fleet, f'{module}:', 'is unknown')
    refuses(fleet, f'{package("this is no Python")}:Theirs', 'cannot be imported: SyntaxError')
    refuses(fleet, f'{package("raise RuntimeError(7)")}:Theirs',
            'cannot be imported: RuntimeError: 7')


def test_a_machine_imports_no_method(package, fleet):
    """Check that a state machine refuses a method whose module nobody has imported before."""
    module = package(CALM)
    sync, reason = f'{module}:Calm:4:2', f"'{module}:Calm:4:2': module {module} must be imported"
    before = fingerprint(fleet.server)
    with pytest.raises(ConfigError, match=reason):
        create(sync, fleet.team)
    with pytest.raises(ConfigError, match=reason):
        fleet.server.set_sync(sync, fleet.now)
    assert fingerprint(fleet.server) == before and module not in sys.modules


def test_a_server_does_not_begin_with_one_that_fails(package):
    body, reason = BAD['raises in grant']
    module = package(f'{HEAD}\n\nclass Theirs(Method):{body}\n')
    with pytest.raises(ConfigError, match=reason):
        Fleet(1, 2, f'{module}:Theirs')


@pytest.mark.parametrize('body, reason', [
    ("""
    def grant(self, robot, iteration):
        return iteration + 1 if iteration < 20 else iteration - 5, Gradient()""",
     'after iteration 20: grant must return an iteration of at least 21, got 15'),
    ("""
    calls = 0
    def sending(self):
        self.calls += 1
        return Sending(0.5 if self.calls < 80 else float('nan'))""", 'must be a share, 0 to 1')])
def test_one_that_fails_later_ends_the_server_by_its_name(package, body, reason):
    """A method that fails during training stops the server, and the error names the method.

    Otherwise robots would refuse the server's commands, or repeat an iteration.
    """
    module = package(f'{HEAD}\n\nclass Theirs(Method):{body}\n')
    sync = f'{module}:Theirs'
    fleet = Fleet(6, 2, sync)
    with pytest.raises(LocalProtocolError, match=f"'{sync}', robot.*{reason}"):
        fleet.run(120)


def test_a_rehearsal_leaves_nothing_behind_in_the_method_that_trains(package):
    sync, team = f'{package(CALM)}:Calm:4:2', Team({'a': 1.0, 'b': 2.0})
    check_named(sync, team)
    method = create(sync, team)
    assert (method.asked_for, method.pushes, method.model) == (0, {}, None)
