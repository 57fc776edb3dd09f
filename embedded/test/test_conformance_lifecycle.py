"""Managed nodes: their states, who changes them, and what they tell others."""

import pytest
from lifecycle_msgs.msg import State, Transition, TransitionEvent
from lifecycle_msgs.srv import ChangeState, GetAvailableStates, GetAvailableTransitions, GetState
from rclpy.lifecycle import LifecycleNode, ManagedEntity, SimpleManagedEntity
from rclpy.lifecycle import TransitionCallbackReturn as Return
from std_msgs.msg import String
from support import DEADLINE

CYCLE = ("configure", "activate", "deactivate", "cleanup")
ALLOWED = {
    "unconfigured": {"configure", "shutdown"},
    "inactive": {"activate", "cleanup", "shutdown"},
    "active": {"deactivate", "shutdown"},
    "finalized": set(),
}


class Managed(LifecycleNode):
    """Notes what is called, and returns what it is told to."""

    def __init__(self, bench, **options):
        self.calls, self.returns = [], {}
        super().__init__("managed", context=bench.context, **options)
        bench.nodes.append(self)
        bench.executor.add_node(self)

    def note(self, name, state):
        self.calls.append((name, state.label))
        result = self.returns.get(name, Return.SUCCESS)
        if isinstance(result, Exception):
            raise result
        return result

    def on_configure(self, state):
        return self.note("configure", state)

    def on_activate(self, state):
        return self.note("activate", state)

    def on_deactivate(self, state):
        return self.note("deactivate", state)

    def on_cleanup(self, state):
        return self.note("cleanup", state)

    def on_shutdown(self, state):
        return self.note("shutdown", state)

    def on_error(self, state):
        return self.note("error", state)


class Driver:
    """A node that asks a managed node for its state and changes it."""

    def __init__(self, bench, name="/managed"):
        self.bench, self.node, self.name = bench, bench.node("driver"), name
        self.events = []
        self.node.create_subscription(
            TransitionEvent,
            f"{name}/transition_event",
            lambda m: self.events.append((m.start_state.label, m.goal_state.label)),
            10,
        )
        self.clients = {}

    def call(self, kind, name, request=None):
        if name not in self.clients:
            self.clients[name] = self.node.create_client(kind, f"{self.name}/{name}")
            assert self.clients[name].wait_for_service(timeout_sec=DEADLINE)
        return self.bench.result(self.clients[name].call_async(request or kind.Request()))

    def change(self, label):
        request = ChangeState.Request(transition=Transition(label=label))
        return self.call(ChangeState, "change_state", request).success

    @property
    def state(self):
        return self.call(GetState, "get_state").current_state.label

    def transitions(self, name="get_available_transitions"):
        found = self.call(GetAvailableTransitions, name).available_transitions
        return [(t.transition.label, t.start_state.label, t.goal_state.label) for t in found]


def to(node, state):
    """Bring a node that is unconfigured to a state."""
    for name in {"inactive": CYCLE[:1], "active": CYCLE[:2], "finalized": ["shutdown"]}.get(
        state, ()
    ):
        getattr(node, f"trigger_{name}")()


def test_a_whole_life(bench):
    node = Managed(bench)
    for name, before in zip(
        CYCLE * 2, ("unconfigured", "inactive", "active", "inactive") * 2, strict=True
    ):
        assert getattr(node, f"trigger_{name}")() == Return.SUCCESS
        assert node.calls[-1] == (name, before)
    assert node.trigger_shutdown() == Return.SUCCESS
    assert node.calls[-1] == ("shutdown", "unconfigured") and len(node.calls) == 9


@pytest.mark.parametrize("state", ALLOWED)
def test_what_a_state_does_not_allow_is_an_error_and_changes_nothing(bench, state):
    for name in (*CYCLE, "shutdown"):
        node = Managed(bench, enable_communication_interface=False)
        to(node, state)
        calls = len(node.calls)
        if name in ALLOWED[state]:
            assert getattr(node, f"trigger_{name}")() == Return.SUCCESS
            assert node.calls[-1] == (name, state)
        else:
            with pytest.raises(Exception, match="transition|Shutdown"):
                getattr(node, f"trigger_{name}")()
            assert len(node.calls) == calls
        bench.executor.remove_node(node)


def test_others_see_and_change_the_state(bench):
    node, driver = Managed(bench), Driver(bench)
    assert driver.state == "unconfigured"
    for name, state in zip(
        CYCLE, ("inactive", "active", "inactive", "unconfigured"), strict=True
    ):
        assert driver.change(name) and driver.state == state
        assert {label for label, *_ in driver.transitions()} == ALLOWED[state]
    assert not driver.change("activate") and driver.state == "unconfigured"
    assert not driver.change("nonsense") and driver.state == "unconfigured"
    assert driver.change("shutdown") and driver.state == "finalized"
    assert not driver.change("configure") and driver.transitions() == []
    assert [name for name, _ in node.calls] == [*CYCLE, "shutdown"]


def test_transitions_are_published(bench):
    node, driver = Managed(bench), Driver(bench)
    counted = [e for e in node.publishers if e.topic_name.endswith("transition_event")]
    if counted:  # the real one keeps it where nobody sees it
        bench.spin_until(lambda: counted[0].get_subscription_count() == 1)
    else:
        bench.spin_until(lambda: node.count_subscribers("/managed/transition_event") == 1)
    to(node, "active")
    bench.spin_until(lambda: ("activating", "active") in driver.events)
    assert driver.events[-3:] == [
        ("configuring", "inactive"),
        ("inactive", "activating"),
        ("activating", "active"),
    ]


def test_the_graph_of_states(bench):
    Managed(bench)
    driver = Driver(bench)
    states = driver.call(GetAvailableStates, "get_available_states").available_states
    assert {s.label: s.id for s in states} == {
        "unknown": State.PRIMARY_STATE_UNKNOWN,
        "unconfigured": State.PRIMARY_STATE_UNCONFIGURED,
        "inactive": State.PRIMARY_STATE_INACTIVE,
        "active": State.PRIMARY_STATE_ACTIVE,
        "finalized": State.PRIMARY_STATE_FINALIZED,
        "configuring": State.TRANSITION_STATE_CONFIGURING,
        "cleaningup": State.TRANSITION_STATE_CLEANINGUP,
        "shuttingdown": State.TRANSITION_STATE_SHUTTINGDOWN,
        "activating": State.TRANSITION_STATE_ACTIVATING,
        "deactivating": State.TRANSITION_STATE_DEACTIVATING,
        "errorprocessing": State.TRANSITION_STATE_ERRORPROCESSING,
    }
    graph = driver.transitions("get_transition_graph")
    assert len(graph) == 25 and set(driver.transitions()) <= set(graph)
    assert ("transition_error", "shuttingdown", "errorprocessing") in graph


@pytest.mark.parametrize(
    "name, failed, error",
    [
        ("configure", "unconfigured", "unconfigured"),
        ("activate", "inactive", "unconfigured"),
        ("deactivate", "active", "unconfigured"),
        ("cleanup", "inactive", "unconfigured"),
        ("shutdown", "finalized", "unconfigured"),
    ],
)
def test_a_transition_that_fails(bench, name, failed, error):
    before = {"activate": "inactive", "deactivate": "active", "cleanup": "inactive"}
    for result, state in (
        (Return.FAILURE, failed),
        (Return.ERROR, error),
        (ValueError("no good"), error),
    ):
        node = Managed(bench)
        driver = Driver(bench)
        to(node, before.get(name))
        node.returns[name] = result
        assert not driver.change(name) and driver.state == state
        assert (node.calls[-1][0] == "error") == (result is not Return.FAILURE)
        for gone in (node, driver.node):
            bench.executor.remove_node(gone)
            gone.destroy_node()


@pytest.mark.parametrize("result", [Return.FAILURE, Return.ERROR])
def test_an_error_that_is_not_handled_is_the_end(bench, result):
    node, driver = Managed(bench), Driver(bench)
    node.returns = {"configure": Return.ERROR, "error": result}
    assert node.trigger_configure() == Return.ERROR
    assert driver.state == "finalized"


def test_a_publisher_of_a_node_that_is_not_active_is_silent(bench):
    node = LifecycleNode("talker", context=bench.context)
    bench.nodes.append(node)
    bench.executor.add_node(node)
    got = []
    node.create_subscription(String, "talk", got.append, 10)
    publisher = node.create_lifecycle_publisher(String, "talk", 10)
    bench.spin_until(lambda: publisher.get_subscription_count() == 1)
    publisher.publish(String(data="unconfigured"))
    to(node, "active")
    assert publisher.is_activated
    publisher.publish(String(data="active"))
    bench.spin_until(lambda: got)
    node.trigger_deactivate()
    publisher.publish(String(data="inactive"))
    node.trigger_activate()
    publisher.publish(String(data="again"))
    bench.spin_until(lambda: len(got) >= 2)
    assert [m.data for m in got] == ["active", "again"]
    assert node.destroy_lifecycle_publisher(publisher)


def test_managed_entities_follow_their_node(bench):
    node = LifecycleNode("parent", context=bench.context)
    bench.nodes.append(node)
    entity = SimpleManagedEntity()
    node.add_managed_entity(entity)
    with pytest.raises(TypeError):
        node.add_managed_entity("no entity")
    node.trigger_configure()
    assert not entity.is_activated
    node.trigger_activate()
    assert entity.is_activated
    node.trigger_deactivate()
    assert not entity.is_activated

    class Refuses(ManagedEntity):
        def on_activate(self, state):
            return Return.FAILURE

    node.add_managed_entity(Refuses())
    assert node.trigger_activate() == Return.FAILURE


def test_without_interface_nobody_can_drive_it(bench):
    node = LifecycleNode("alone", context=bench.context, enable_communication_interface=False)
    bench.nodes.append(node)
    assert not [s for s in node.services if "state" in s.srv_name]
    assert node.trigger_configure() == Return.SUCCESS
    with pytest.raises(TypeError):
        LifecycleNode(
            "other", context=bench.context, enable_communication_interface="yes"
        )
