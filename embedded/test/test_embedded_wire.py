"""Our own parts: what is on the wire, and what happens when something is wrong."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from cyclonedds.qos import Policy
from rclpy import _args, _dds, _profile
from rclpy._message import message_class
from rclpy.publisher import endpoint_data
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy, to_dds
from rclpy.serialization import deserialize_message, serialize_message
from rclpy.task import Future
from std_msgs.msg import String
from std_srvs.srv import SetBool
from support import DEADLINE

ROOT = Path(__file__).resolve().parents[1]


def test_discovery_info(bench):
    """What ros2 node list reads."""
    other = bench.node("watcher")
    node = bench.node("n", namespace="/ns")
    node.create_publisher(String, "topic", 10)
    subscription = node.create_subscription(String, "topic", lambda m: None, 10)
    graph = bench.context.graph
    participant = _dds.create_participant(bench.context.get_domain_id(), b"enclave=/;")
    try:
        info = message_class("rmw_dds_common/msg/ParticipantEntitiesInfo")
        type_name, user_data = endpoint_data(info)
        topic = _dds.create_topic(participant, "ros_discovery_info", type_name)
        qos = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        reader = _dds.create_reader(participant, topic, to_dds(qos, user_data, False))
        waiter = _dds.WaitSet()
        waiter.attach(reader, 1)
        samples = []
        while not samples:
            assert waiter.wait(30 * 10**9)
            samples = _dds.take(reader, 1)
        waiter.close()
    finally:
        _dds.delete_participant(bench.context.get_domain_id(), participant)
    message = deserialize_message(samples[0][0], info)
    gids = {(e.topic, e.is_writer): e.gid for e in graph.endpoints()}
    assert bytes(message.gid.data)[:12] == gids["rt/ns/topic", True][:12]  # of one participant
    nodes = {(n.node_namespace, n.node_name): n for n in message.node_entities_info_seq}
    assert nodes.keys() == {("/", other.get_name()), ("/ns", "n")}
    listed = nodes["/ns", "n"]
    assert gids["rt/ns/topic", True] in [bytes(g.data) for g in listed.writer_gid_seq]
    assert gids["rt/ns/topic", False] in [bytes(g.data) for g in listed.reader_gid_seq]
    before = graph.endpoints_of("n", "/ns")
    node.destroy_subscription(subscription)
    assert len(graph.endpoints_of("n", "/ns")) == len(before) - 1


def test_what_has_gone_takes_no_place_in_the_graph(bench, monkeypatch):
    """It was kept for ever, and read; after 10,000 of them nothing new was seen."""
    monkeypatch.setattr(_dds, "_MOST", 60)
    watcher, node = bench.node("watcher"), bench.node("n")
    assert watcher.count_publishers("topic0") == 0
    for number in range(80):
        publisher = node.create_publisher(String, f"topic{number}", 1)
        assert watcher.count_publishers(f"topic{number}") == 1
        node.destroy_publisher(publisher)
    assert watcher.count_publishers("topic79") == 0


def test_to_look_at_the_graph_takes_no_memory(bench):
    """It took 100 bytes for each writer and reader, each time."""
    node = bench.node("n")
    for number in range(50):
        node.create_publisher(String, f"topic{number}", 1)

    def used():
        pages = Path("/proc/self/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def look(times):
        for _ in range(times):
            assert node.count_publishers("topic7") == 1

    look(20)
    before = used()
    look(500)
    assert used() - before < 1_000_000


def test_endpoints_carry_type_hashes(bench):
    node = bench.node()
    node.create_publisher(String, "topic", 10)
    node.create_client(SetBool, "switch")
    data = {
        (e.topic, e.is_writer): e.qos[Policy.Userdata].data
        for e in bench.context.graph.endpoints()
    }
    assert data["rt/topic", True].startswith(b"typehash=RIHS01_df668c74")
    request, reply = data["rq/switchRequest", True], data["rr/switchReply", False]
    assert request.startswith(b"clientid=") and b";typehash=RIHS01_" in request
    assert request.split(b";")[0] == reply.split(b";")[0]
    assert request != reply


def test_qos_in_dds():
    best_effort = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)
    texts = [str(p) for p in to_dds(best_effort, b"", True)]
    assert any("BestEffort" in t for t in texts)
    assert any("autodispose=False" in t for t in texts)
    latched = QoSProfile(depth=3, durability=DurabilityPolicy.TRANSIENT_LOCAL)
    texts = [str(p) for p in to_dds(latched, b"", True)]
    assert any("DurabilityService" in t and "depth=3" in t for t in texts)


def malformed_writer(bench, dds_topic, cls, data, reader_count):
    type_name, user_data = endpoint_data(cls)
    participant = bench.context._participant
    topic = _dds.create_topic(participant, dds_topic, type_name)
    writer = _dds.create_writer(participant, topic, to_dds(QoSProfile(depth=10), user_data, True))
    bench.spin_until(lambda: _dds.matched_readers(writer) == reader_count)
    for d in data:
        assert _dds.write(writer, d) >= 0


BAD = [b"\0\1\0\0\xff\xff\xff\x7f", b"\0\1\0\0\x05\0\0\0ab", b"\xff\xff\0\0" + bytes(40),
       b"\0\1\0\0\x03\0\0\0\xff\xfe\0", b"\0\1\0\0\0"]  # fmt: skip


def test_malformed_samples_are_dropped_with_a_line_in_the_log(bench, capfd):
    node, got = bench.node(), []
    node.create_subscription(String, "topic", lambda m: got.append(m.data), 10)
    good = serialize_message(String(data="good"))
    malformed_writer(bench, "rt/topic", String, [*BAD, good], 1)
    bench.spin_until(lambda: got)
    assert got == ["good"]
    assert "/topic: sample dropped" in capfd.readouterr().err


def test_malformed_requests_and_replies_are_dropped(bench, capfd):
    node = bench.node()

    def answer(request, response):
        response.success = True
        return response

    node.create_service(SetBool, "switch", answer)
    client = node.create_client(SetBool, "switch")
    assert client.wait_for_service(timeout_sec=30)
    prefix = b"\0\1\0\0" + client._prefix
    malformed_writer(bench, "rq/switchRequest", SetBool.Request, [*BAD, prefix + bytes(8)], 1)
    malformed_writer(bench, "rr/switchReply", SetBool.Response, [*BAD, prefix + bytes(9)], 1)
    assert bench.result(client.call_async(SetBool.Request(data=True))).success
    assert "/switch: sample dropped" in capfd.readouterr().err


def test_a_foreign_discovery_message_does_no_harm(bench):
    node = bench.node()
    info = message_class("rmw_dds_common/msg/ParticipantEntitiesInfo")
    malformed_writer(bench, "ros_discovery_info", info, BAD, 0)
    assert node.get_node_names() == [node.get_name()]


def run(code, **environment):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("ROS_", "CYCLONEDDS"))}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**env, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


INIT = "import rclpy; rclpy.init(); rclpy.shutdown()"


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"ROS_DISTRO": "humble"}, ["humble", "ROS_DISTRO=jazzy"]),
        ({"ROS_DOMAIN_ID": "x"}, ["ROS_DOMAIN_ID"]),
        ({"ROS_DOMAIN_ID": "233"}, ["ROS_DOMAIN_ID", "232"]),
        ({"ROS_AUTOMATIC_DISCOVERY_RANGE": "MOON"}, ["SUBNET", "LOCALHOST"]),
        (
            {"CYCLONEDDS_URI": "<CycloneDDS><Domain><General><Interfaces><NetworkInterface "
             "name='none0'/></Interfaces></General></Domain></CycloneDDS>"},
            ["CYCLONEDDS_URI", "interface"],
        ),
    ],
)  # fmt: skip
def test_wrong_configuration_says_what_to_do(environment, words):
    done = run(INIT, **environment)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "ConfigurationError" in last
    assert all(w in last for w in words), last


def test_no_interface_says_what_to_do():
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-rn", "true"]).returncode != 0:
        pytest.skip("network namespaces are not allowed here")
    done = subprocess.run(
        [unshare, "-rn", sys.executable, "-c", INIT], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "ip link set lo up" in done.stderr.strip().splitlines()[-1]


def test_by_default_dds_stays_on_this_machine(monkeypatch):
    for name in ("ROS_AUTOMATIC_DISCOVERY_RANGE", "CYCLONEDDS_URI", "ROS_LOCALHOST_ONLY"):
        monkeypatch.delenv(name, raising=False)
    assert _profile.discovery_range() == "LOCALHOST"
    assert 'address="127.0.0.1"' in _profile.cyclone_config()
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "SUBNET")
    monkeypatch.setenv("ROS_STATIC_PEERS", "10.0.0.1;10.0.0.2")
    config = _profile.cyclone_config()
    assert "127.0.0.1" not in config and '"10.0.0.2"' in config
    monkeypatch.delenv("ROS_AUTOMATIC_DISCOVERY_RANGE")
    monkeypatch.setenv("CYCLONEDDS_URI", "file:///etc/cyclone.xml")
    assert _profile.discovery_range() == "SYSTEM_DEFAULT"
    config = _profile.cyclone_config()
    assert config.endswith(",file:///etc/cyclone.xml")
    assert "<SPDPInterval>5s<" in config  # who was forgotten is met again soon


def test_exit_without_any_clean_up():
    code = """
import rclpy
from std_msgs.msg import String
from std_srvs.srv import SetBool
rclpy.init()
nodes = [rclpy.create_node(f"n{i}") for i in range(3)]
for n in nodes:
    n.create_publisher(String, "a", 1)
    n.create_subscription(String, "a", print, 1)
    n.create_client(SetBool, "b")
rclpy.spin_once(nodes[0], timeout_sec=0.01)
nodes[0].get_logger().info("bye")
"""
    done = run(code, ROS_DOMAIN_ID=os.environ["ROS_DOMAIN_ID"])
    assert done.returncode == 0, done.stderr


def test_a_forked_child_keeps_its_signals_to_itself():
    code = """
import os, signal, rclpy
rclpy.init()
child = os.fork()
if child == 0:
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(0)
os.waitpid(child, 0)
node = rclpy.create_node("n")
rclpy.spin_once(node, timeout_sec=0.2)
print(rclpy.ok())
"""
    done = run(code, ROS_DOMAIN_ID=os.environ["ROS_DOMAIN_ID"])
    assert done.stdout.strip() == "True", done.stderr


def test_wildcards_of_parameter_files():
    matches = _args.node_matches
    assert matches("/**", "/a/b") and matches("/**", "/a")
    assert matches("/*/n", "/r/n") and not matches("/*/n", "/n") and not matches("/*/n", "/a/b/n")
    assert matches("/a/**/n", "/a/n") and matches("/a/**/n", "/a/b/c/n")
    assert matches("/a", "/a") and not matches("/a", "/ab")


def test_build_copies_the_message_definitions(tmp_path):
    subprocess.run(
        [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", tmp_path,
         "build", "--build-base", tmp_path / "b", "--build-lib", tmp_path / "lib"],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    built = tmp_path / "lib"
    assert (built / "rog_msgs" / "msg" / "RowChunk.msg").exists()
    assert (built / "rog_msgs" / "srv" / "Register.srv").exists()
    assert (built / "std_srvs" / "srv" / "SetBool.srv").exists()
    assert not list((ROOT / "src" / "rog_msgs").rglob("*.msg"))
    code = "from rog_msgs.msg import RowChunk; import rog_msgs; print(rog_msgs.__file__)"
    done = run(code, PYTHONPATH=str(built))
    assert done.stdout.startswith(str(built)), done.stderr


@pytest.mark.parametrize("change", ["future", "entity"])
def test_what_another_thread_changes_while_the_executor_polls_is_seen(bench, change):
    """Polling uses up the wake, so that without a second look the executor slept for ever."""
    node, executor, future = bench.node(), bench.executor, Future()
    changes = {
        "future": lambda: future.set_result(None),
        "entity": lambda: node.create_subscription(String, "topic", future.set_result, latched),
    }
    latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
    publisher = node.create_publisher(String, "topic", latched)
    publisher.publish(String())
    done, wait = [], executor._wait

    def poll(timeout):
        if not timeout and not done:
            done.append(changes[change]())
        wait(timeout)

    executor._wait = poll
    thread = threading.Thread(
        target=executor.spin_until_future_complete, args=(future,), daemon=True
    )
    thread.start()
    thread.join(DEADLINE)
    assert not thread.is_alive()
