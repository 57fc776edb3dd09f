"""`Computing` runs inferences in a thread with a bounded queue; it skips abandoned requests."""

import threading

import numpy as np
from fleet_policy.computing import Computing
from fleet_policy.contract import make_contract
from fleet_policy.core.machine import Infer
from fleet_policy.core.places import ROBOT, SERVER
from fleet_testing import LIMIT, eventually
from policies import CONTRACT, Small

VALUES = {'state': np.zeros(3, np.float32)}



class Blind(Small):
    """A policy that uses only the joints."""

    def observe(self, batch):
        return (batch['state'],)


class Place:
    """A place (`Computing`) whose model waits until `go` is set."""

    def __init__(self, name=ROBOT, network=None, awaited=lambda request: True, most=1):
        self.answers, self.computed, self.go = [], [], threading.Event()
        contract = make_contract({**CONTRACT, 'observations': {
            'state': CONTRACT['observations']['state']}})

        def waits(state):
            self.computed.append(state)
            assert self.go.wait(LIMIT)
            return state.new_ones(1, 5, 4)
        self.place = Computing(name, Blind(), contract, network or waits, lambda: name,
                               self.answers.append, awaited, most)

    def ask(self, request):
        return self.place.ask(Infer('', request, 0.0, None), VALUES)


def test_answers_come_in_order_and_what_does_not_fit_is_refused():
    made = Place(most=2)
    assert made.ask(1)
    eventually(lambda: made.computed)
    assert made.ask(2) and made.ask(3) and not made.ask(4)
    made.go.set()
    eventually(lambda: len(made.answers) == 3)
    assert [answer.request for answer in made.answers] == [1, 2, 3]
    assert made.answers[0].actions.shape == (5, 4) and made.answers[0].where == ROBOT
    made.place.close()


def test_a_request_that_was_given_up_is_not_computed():
    wanted = {1, 3}
    made = Place(awaited=lambda request: request in wanted, most=3)
    made.ask(1)
    eventually(lambda: made.computed)
    made.ask(2)
    made.ask(3)
    made.go.set()
    eventually(lambda: len(made.answers) == 2)
    assert [answer.request for answer in made.answers] == [1, 3] and len(made.computed) == 2
    made.place.close()


def test_an_error_is_the_policys_on_the_robot_and_the_places_on_the_server():
    def broken(state):
        raise RuntimeError('gone')
    for name, fault, failure in ((ROBOT, 'the policy raised in model: RuntimeError: gone', ''),
                                 (SERVER, '', 'RuntimeError: gone')):
        made = Place(name, broken)
        made.ask(1)
        eventually(lambda made=made: made.answers)
        assert (made.answers[0].fault, made.answers[0].failure) == (fault, failure)
        made.place.close()
