"""A fleet of real processes over real DDS, and a node that watches this fleet.

The only times here are deadlines. They are so long that only a process that hangs
exceeds them.
"""

import signal
from pathlib import Path

import yaml
from fleet_env.settings.fleet_file import read_fleet
from fleet_ros.parameters import parameter_file
from fleet_testing import PROGRAMS, environment, forks
from rog_msgs.msg import Bundle, FleetStatus, TrainingStatus
from rog_ros import qos
from rog_ros.parameters import server_parameters, worker_parameters
from rog_ros.transfers import SERVER, WORKER, split
from spun_nodes import SpunNodes

HERE = Path(__file__).parent
SEED = 3  # seed of the fleet and of its task
MODULES = {'server': 'rog_ps.main'}


def write_fleet(folder, robots=2, minutes=10.0, task='tiny_task:Tiny', sync='rsp:4'):
    """Write a fleet file for a tiny task over fast links, and return its path."""
    path = Path(folder) / 'tiny.yaml'
    path.write_text(yaml.safe_dump({
        'name': 'tiny', 'minutes': minutes, 'seed': SEED,
        'training': {'task': task, 'sync': sync, 'pace': 0.05, 'learning_rate': 0.02,
                     'batch_size': 8},
        'link': {'emulate': False}, 'heartbeat': {'period': 0.2, 'limit': 2.0},
        'server': {'checkpoint_every': 0.5},
        'robots': [{'name': f'robot{n + 1}'} for n in range(robots)]}))
    return path


class Fleet:
    """The processes of a fleet by name (`server`, `robot1`, ...), and what they publish."""

    def __init__(self, folder, **settings):
        self.folder, self.out = Path(folder), Path(folder) / 'out'
        self.fleet = read_fleet(write_fleet(folder, **settings))
        self.processes = {}
        self.status, self.robots = None, {}
        self._nodes = SpunNodes()
        self.domain, self.node = self._nodes.domain, self._nodes.node('observer')
        self.node.create_subscription(FleetStatus, '/rog/fleet_status', self._on_fleet, qos.STATUS)
        for robot in self.fleet.robots:
            self.node.create_subscription(TrainingStatus, f'/{robot.name}/training_status',
                                          self._on_robot, qos.STATUS)

    def _on_fleet(self, message):
        self.status = message

    def _on_robot(self, message):
        if message.robot in [robot.name for robot in self.fleet.robots]:
            self.robots[message.robot] = message

    # -- processes

    def start(self, *names, label='', folders=(), namespace='', **parameters):
        """Start processes; ``parameters`` replace the values that the fleet file gives.

        ``folders``: folders from which only these processes can import modules. ``namespace``:
        namespace of the fleet to which the processes belong.
        """
        for name in names:
            if name == 'server':
                values = server_parameters(self.fleet, str(self.out))
            else:
                values = worker_parameters(self.fleet, self.fleet.robot(name))
            file = self.folder / f'{label or name}.yaml'
            file.write_text(parameter_file({**values, **parameters}))
            with self.log_path(label or name).open('ab') as log:
                self.processes[label or name] = forks(*PROGRAMS).start(
                    [MODULES.get(name, 'rog_worker.main'), '--ros-args', '-r',
                     f'__ns:={namespace}/{"rog" if name == "server" else name}',
                     '--params-file', str(file)], log, environment(self.domain, HERE, *folders))

    def start_all(self):
        self.start('server', *(robot.name for robot in self.fleet.robots))

    def log_path(self, name):
        return self.folder / f'{name}.log'

    def log(self, name):
        return self.log_path(name).read_text()

    def kill(self, name):
        self.processes[name].kill()
        self.processes[name].wait()

    def interrupt(self, name):
        self.processes[name].send_signal(signal.SIGINT)

    def ended(self, name):
        """Spin until a process ends; return its exit code."""
        self.until(lambda: self.processes[name].poll() is not None, f'{name} ends')
        return self.processes[name].returncode

    # -- what the fleet publishes

    def until(self, condition, what):
        """Spin until ``condition`` returns true; ``what`` describes it in the error message."""
        def said():
            logs = '\n'.join(f'--- {n}\n{self.log(n)[-1500:]}' for n in self.processes)
            return f'{what}\n{self.status}\n{logs}'
        self._nodes.until(condition, said)

    def spin(self):
        """Handle the messages that have arrived."""
        self._nodes.spin(0.0)

    def overhear(self, robot, topics):
        """Return topic -> list of its messages, to which those in bundles are added, too.

        ``topics``: topic -> (type, profile).
        """
        heard = {topic: [] for topic in topics}
        for topic, (kind, profile) in topics.items():
            self.node.create_subscription(kind, f'/{robot}/{topic}', heard[topic].append, profile)
        for side in (WORKER, SERVER):
            places = dict(side.sends.values())

            def take(bundle, places=places):
                for message in split(bundle):
                    heard.setdefault(places[type(message)], []).append(message)
            self.node.create_subscription(Bundle, f'/{robot}/{side.bundling.sends}', take,
                                          qos.CHUNK)
        return heard

    def state(self, robot):
        """Return the state of a robot, as the server publishes it."""
        known = {r.robot: r.state for r in self.status.robots} if self.status else {}
        return known.get(robot, '')

    def iteration(self, robot):
        """Return a robot's iteration; 0 until the server and the robot have sent a status."""
        return self.robots[robot].iteration if self.status and robot in self.robots else 0

    def until_trained(self, *robots, iterations=5):
        """Spin until each of the robots has completed ``iterations`` more iterations."""
        start = {robot: self.iteration(robot) for robot in robots}
        self.until(lambda: all(self.iteration(r) >= start[r] + iterations for r in robots),
                   f'{robots} train from {start} on')

    def close(self):
        for process in self.processes.values():
            process.kill()
            process.wait()
        self._nodes.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
