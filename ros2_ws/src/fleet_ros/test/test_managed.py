"""The life cycle of a managed node: valid and invalid transitions, and what they release."""

import pytest
from fleet_env.errors import SettingError
from fleet_env.settings.base import setting
from fleet_ros.managed import ManagedNode, ManagedSettings
from fleet_ros.parameters import declare
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from one_process import OneProcess
from rclpy.parameter import Parameter
from std_msgs.msg import String

CYCLE = {'configure': 'inactive', 'activate': 'active', 'deactivate': 'inactive',
         'cleanup': 'unconfigured'}


class Things(ManagedSettings):
    """Settings of the node `Worker`."""

    things: int = setting(3, 'how many things there are', ge=1)


class Worker(ManagedNode):
    """Records its transitions; fails in the transition that the test chooses."""

    fails: dict = {}

    def __init__(self, **options):
        self.did = []
        super().__init__('thing', Things, **options)

    def do(self, what):
        self.did.append(what)
        if what in self.fails:
            raise self.fails[what]

    def configure(self):
        self.things = declare(self, Things).things
        self.held.callback(self.do, 'free')
        self.topic = self.create_publisher(String, 'things', 10)
        self.create_subscription(String, 'others', lambda message: None, 10)
        self.create_timer(10.0, print)
        self.do('configure')

    def activate(self):
        self.do('activate')

    def deactivate(self):
        self.do('deactivate')

    def cleanup(self):
        self.do('cleanup')

    def shutdown(self):
        self.do('shutdown')
        super().shutdown()


class Bench(OneProcess):
    def worker(self, kind=Worker, **parameters):
        return self.add(kind(context=self.context, parameter_overrides=[
            Parameter(name, value=value) for name, value in parameters.items()]))

    def change(self, **transition):
        return self.call(ChangeState, 'change_state',
                         transition=Transition(**transition)).success

    @property
    def state(self):
        return self.call(GetState, 'get_state').current_state.label


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.setattr(Worker, 'fails', {})
    made = Bench()
    yield made
    made.close()


def test_a_node_brings_itself_up(bench):
    node = bench.worker()
    assert node.did == ['configure', 'activate'] and bench.state == 'active'
    assert node.configured and node.active and not node.done


def test_without_autostart_a_manager_brings_it_up_again_and_again(bench):
    node = bench.worker(autostart=False)
    assert bench.state == 'unconfigured' and not node.did
    former = len(list(node.publishers))
    for _ in range(2):
        for label, state in CYCLE.items():
            assert bench.change(label=label) and bench.state == state
            assert node.configured == (state != 'unconfigured')
            assert node.active == (state == 'active')
        assert node.did == [*CYCLE, 'free']
        assert len(list(node.publishers)) == former
        assert not [t for t in node.subscriptions if t.topic_name == '/others']
        assert not list(node.timers)
        node.did.clear()


@pytest.mark.parametrize('state, wrong', [
    ('unconfigured', ['activate', 'deactivate', 'cleanup']),
    ('inactive', ['configure', 'deactivate']),
    ('active', ['configure', 'activate', 'cleanup'])])
def test_a_wrong_transition_is_refused_and_changes_nothing(bench, state, wrong):
    node = bench.worker(autostart=False)
    for label in {'inactive': ['configure'], 'active': ['configure', 'activate']}.get(state, []):
        assert bench.change(label=label)
    did = list(node.did)
    for label in wrong:
        assert not bench.change(label=label)
        # Nav2's lifecycle manager identifies a transition by its number.
        assert not bench.change(id=getattr(Transition, f'TRANSITION_{label.upper()}'))
    assert bench.state == state and node.did == did


@pytest.mark.parametrize('state', ['unconfigured', 'inactive', 'active'])
def test_a_node_is_shut_down_once_in_any_state(bench, state):
    node = bench.worker(autostart=False)
    for label in {'inactive': ['configure'], 'active': ['configure', 'activate']}.get(state, []):
        assert bench.change(label=label)
    assert bench.change(label='shutdown') and node.done and bench.state == 'finalized'
    assert not any(bench.change(label=label) for label in (*CYCLE, 'shutdown'))


@pytest.mark.parametrize('what, before', [('configure', 'unconfigured'), ('activate', 'inactive'),
                                          ('deactivate', 'active'), ('cleanup', 'inactive')])
def test_a_fault_of_the_user_leaves_it_where_it_was_and_anything_else_frees_it(bench, what, before):
    node = bench.worker(autostart=False)
    for error, after in ((SettingError('this cannot be'), before),
                         (ZeroDivisionError('oops'), 'unconfigured')):
        Worker.fails = {}
        for label in ('configure', 'activate', 'deactivate'):
            if bench.state != before:
                assert bench.change(label=label)
        Worker.fails = {what: error}
        assert not bench.change(label=what) and bench.state == after
        assert node.configured == (after != 'unconfigured')
        assert node.active == (after == 'active')
    Worker.fails = {}
    assert bench.change(label='configure') and bench.change(label='activate')
    assert bench.state == 'active'


def test_a_node_that_cannot_bring_itself_up_says_why(bench):
    with pytest.raises(Exception, match='things'):
        bench.worker(things=0)
    Worker.fails = {'activate': SettingError('no link')}
    with pytest.raises(SettingError, match='no link'):
        bench.worker()


def test_a_bad_parameter_fails_the_configuration(bench):
    node = bench.worker(autostart=False, things=0)
    assert not bench.change(label='configure') and bench.state == 'unconfigured'
    assert not node.configured and bench.change(label='shutdown')


def test_a_node_that_must_not_be_driven_is_not_unless_it_waits_for_that(bench):
    class Guarded(Worker):
        def is_drivable(self):
            return False

    def offered(node):
        return [s.srv_name for s in node.services if s.srv_name.endswith('_state')]

    assert not offered(bench.worker(Guarded))
    assert offered(bench.worker(Guarded, autostart=False))
