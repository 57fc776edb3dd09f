"""The services that rclpy gives every node: what a call can change, and what it costs."""


import pytest
from fleet_env.settings.base import setting
from fleet_ros.managed import ManagedNode, ManagedSettings
from fleet_ros.parameters import declare
from fleet_ros.services import (
    MOST,
    PARAMETER_SERVICES,
    bound_parameters,
    close_parameters,
)
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from one_process import OneProcess
from rcl_interfaces.msg import Parameter as ParameterMessage
from rcl_interfaces.msg import ParameterValue
from rcl_interfaces.srv import (
    DescribeParameters,
    GetParameters,
    ListParameters,
    SetParameters,
    SetParametersAtomically,
)
from rclpy.node import Node
from rclpy.parameter import Parameter
from type_description_interfaces.srv import GetTypeDescription


class Fixed(ManagedSettings):
    """Settings of a node; none of them can change while the node runs."""

    things: int = setting(3, 'how many things there are', ge=1)


class Changing(ManagedSettings):
    """Settings of a node; one of them can change while the node runs."""

    mode: str = setting('slow', 'how it goes', live=True)


class Managed(ManagedNode):
    """A managed node with the given settings."""

    def __init__(self, model, **options):
        self.model = model
        super().__init__('thing', model, **options)

    def configure(self):
        declare(self, self.model)


class Bench(OneProcess):
    def managed(self, model):
        return self.add(Managed(model, context=self.context))

    def plain(self):
        node = self.add(Node('thing', context=self.context))
        node.declare_parameter('mode', 'slow')
        bound_parameters(node)
        return node


@pytest.fixture
def bench():
    made = Bench()
    yield made
    made.close()


def offered(node):
    return {service.srv_name.rpartition('/')[2] for service in node.services
            if 'parameter' in service.srv_name}


def of_type(number, name='mode'):
    return ParameterMessage(name=name, value=ParameterValue(type=number))


def test_a_node_that_takes_no_changes_refuses_them(bench):
    assert offered(bench.managed(Fixed)) == {*PARAMETER_SERVICES}   # ros2 param waits for all
    more = Parameter('things', value=4).to_parameter_msg()
    result, = bench.call(SetParameters, 'set_parameters', parameters=[more]).results
    assert not result.successful and 'read-only' in result.reason
    listed = bench.call(ListParameters, 'list_parameters').result.names
    assert 'things' in listed
    assert bench.call(GetParameters, 'get_parameters',
                      names=['things']).values[0].integer_value == 3
    assert bench.call(DescribeParameters, 'describe_parameters',
                      names=['things']).descriptors[0].read_only


def test_a_node_that_takes_changes_offers_them_and_one_that_is_closed_nothing(bench):
    node = bench.managed(Changing)
    assert offered(node) == {*PARAMETER_SERVICES}
    change = Parameter('mode', value='fast').to_parameter_msg()
    assert bench.call(SetParameters, 'set_parameters', parameters=[change]).results[0].successful
    assert node.get_parameter('mode').value == 'fast'
    close_parameters(node)
    assert not offered(node)


@pytest.mark.parametrize('number', [10, 77, 255])
def test_a_value_of_a_type_that_is_none_does_not_end_the_node(bench, number):
    node = bench.managed(Changing)
    assert not bench.call(SetParameters, 'set_parameters', parameters=[of_type(number)]).results
    answer = bench.call(SetParametersAtomically, 'set_parameters_atomically',
                        parameters=[of_type(number)])
    assert not answer.result.successful
    # 0 to 9 are types of parameters; rclpy itself reports wrong values of these types
    for known in range(10):
        bench.call(SetParameters, 'set_parameters', parameters=[
            of_type(known, name) for name in ('mode', 'use_sim_time', 'nothing', '')])
    assert node.get_parameter('mode').value in ('slow', '')


def test_the_clock_of_a_node_cannot_be_changed(bench):
    bench.managed(Changing)
    use = Parameter('use_sim_time', value=True).to_parameter_msg()
    result, = bench.call(SetParameters, 'set_parameters', parameters=[use]).results
    assert not result.successful and 'cannot change while the node runs' in result.reason


def test_a_call_that_names_too_much_is_answered_with_nothing(bench):
    bench.plain()
    assert not bench.call(GetParameters, 'get_parameters', names=['mode'] * (MOST + 1)).values
    assert len(bench.call(GetParameters, 'get_parameters', names=['mode'] * MOST).values) == MOST


RAW = ['\x1b[2J', 'a\nb', '\x9b2J', '\u202ex', 'x' * 10_000]


@pytest.mark.parametrize('text', RAW)
def test_what_a_stranger_calls_a_type_or_a_transition_is_not_logged_raw(bench, text, capfd):
    """A call with an unprintable or long name is refused, and the name is not logged.

    The C library of ROS 2 would log an unknown name without escaping it.
    """
    bench.managed(Fixed)
    assert not bench.call(GetTypeDescription, 'get_type_description', type_name=text,
                          type_hash=text).successful
    assert not bench.call(ChangeState, 'change_state',
                          transition=Transition(label=text)).success
    logged = capfd.readouterr().err
    assert text not in logged and 'refused' in logged
    assert bench.call(ChangeState, 'change_state',
                      transition=Transition(label='deactivate')).success, 'the twin'
    assert not bench.call(GetTypeDescription, 'get_type_description', type_name='a/msg/B',
                          type_hash='x').successful
    assert "parse type hash 'x'" in capfd.readouterr().err, 'the twin'
