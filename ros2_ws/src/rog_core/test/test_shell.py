"""A shell carries out the actions of a machine in order, each by the function for its kind."""

from rog_core.protocol.messages import Compute, Notice, RegisterRequest, Send, Stop
from rog_core.shell import Shell

REQUEST = RegisterRequest('robot1', 1, 0, 0, 'row', 'onebit', '', ())
CALL, SEND = Send('robot1', REQUEST), Send('robot1', None)
ACTIONS = [SEND, CALL, Compute(1), Notice('robot1', 'retired', ''), SEND, Stop()]


def test_each_kind_of_action_has_its_function_and_their_order_stays():
    done = []
    Shell(done.append, lambda request: done.append((request, 'asked')), done.append, done.append,
          done.append).carry_out(iter(ACTIONS))
    assert done == [SEND, (REQUEST, 'asked'), *ACTIONS[2:]]


def test_what_a_shell_has_no_function_for_is_left_out():
    done = []
    Shell(done.append).carry_out(ACTIONS)
    assert done == [SEND, SEND]
