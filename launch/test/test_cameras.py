"""Robots learn from a camera and from files. A robot that lacks images stops no other robot."""

import json
import subprocess
import sys

import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from fleet_testing import environment
from fleet_under_test import HERE, Fleet
from PIL import Image
from rog_ros import qos

TASK = 'rog_tasks.recognition:Recognition'
CAMERA = ('topic:camera?patience=2&keep=64', 'topic:said?tolerance=0.3')


class Robots(Fleet):
    """A fleet in which each robot has its own images.

    ``health``: the last status of each name on /diagnostics.
    """

    def __init__(self, folder, robots):
        super().__init__(folder, robots=robots, task=TASK, sync='rsp:4')
        self.photos = folder / 'photos'
        for name, colour in (('blue', (20, 30, 220)), ('red', (220, 30, 20))):
            (self.photos / name).mkdir(parents=True)
            for number in range(6):
                pixels = np.full((8, 8, 3), colour, np.uint8)
                Image.fromarray(pixels).save(self.photos / name / f'{number}.png')
        self.health = {}
        self.node.create_subscription(DiagnosticArray, '/diagnostics', self._on_health,
                                      qos.DIAGNOSTICS)

    def _on_health(self, message):
        self.health |= {status.name: status for status in message.status}

    def see(self, name, images, labels=''):
        """Start a process of the fleet; its task uses the given images and labels."""
        self.start(name, task_options=json.dumps({
            'images': images, 'labels': labels, 'classes': ['blue', 'red'], 'size': 16,
            'model': 'digitnet', 'test': f'folder:{self.photos}'}))

    def film(self, robot):
        """Switch on a robot's camera."""
        with self.log_path('camera').open('ab') as log:
            self.processes['camera'] = subprocess.Popen(
                [sys.executable, str(HERE / 'camera.py'), '--ros-args', '-r', f'__ns:=/{robot}'],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env=environment(self.domain, HERE))

    def until_it_says(self, level, *words):
        """Spin until /diagnostics shows this level and these words for robot1's camera."""
        def found():
            status = self.health.get('/robot1/worker: camera camera')
            return status is not None and status.level == level \
                and all(word in status.message for word in words)
        self.until(found, f'a camera is {level}: {words}, not {self.health}')


@pytest.mark.long
def test_a_robot_that_loses_its_camera_pauses_and_the_others_go_on(tmp_path):
    with Robots(tmp_path, robots=2) as fleet:
        photos = f'folder:{fleet.photos}'
        fleet.see('server', *CAMERA)
        fleet.see('robot1', *CAMERA)
        fleet.see('robot2', photos)
        fleet.until_trained('robot2')
        fleet.until_it_says(DiagnosticStatus.ERROR, 'nobody publishes /robot1/camera',
                            'nobody publishes /robot1/said')
        assert not fleet.state('robot1')  # robot1 has not joined, so nobody waits for it
        fleet.film('robot1')
        fleet.until_trained('robot1', 'robot2')
        fleet.until_it_says(DiagnosticStatus.OK, 'images come')
        for _ in range(2):
            fleet.kill('camera')
            fleet.until_it_says(DiagnosticStatus.ERROR, 'no image for', 'training is paused')
            at = fleet.iteration('robot1')
            fleet.until(lambda: fleet.state('robot1') == 'retired', 'nobody waits for robot1')
            fleet.until_trained('robot2', iterations=20)
            assert fleet.state('robot1') == 'retired'  # not away, because its heartbeats continue
            assert fleet.iteration('robot1') <= at + 1
            fleet.film('robot1')
            fleet.until_trained('robot1')
            fleet.until_it_says(DiagnosticStatus.OK, 'images come')
        fleet.until(lambda: fleet.robots['robot1'].accuracy == 1.0, 'robot1 tells red from blue')
        fleet.kill('camera')
        fleet.until_it_says(DiagnosticStatus.ERROR, 'no image for', 'training is paused')
        fleet.interrupt('server')
        # the server and robot2 end, although robot1 is still waiting for images
        assert fleet.ended('server') == fleet.ended('robot2') == 0
        fleet.interrupt('robot1')
        assert fleet.ended('robot1') == 0
        assert all('Traceback' not in fleet.log(name) for name in ('server', 'robot1', 'robot2'))
        assert 'training is paused' in fleet.log('robot1')


@pytest.mark.long
def test_robots_without_usable_files_end_with_one_line_and_the_others_go_on(tmp_path):
    (tmp_path / 'empty').mkdir()
    (tmp_path / 'bag').mkdir()
    (tmp_path / 'bag/bag.mcap').write_bytes(b'\x89MCAP0\r\n' + bytes(100))
    wrong = {'robot2': (f'folder:{tmp_path}/empty', 'empty holds no images'),
             'robot3': (f'folder:{tmp_path}/nothing', 'nothing is not there'),
             'robot4': (f'bag:{tmp_path}/bag?topic=/cam', 'cannot be read as a recording')}
    with Robots(tmp_path, robots=4) as fleet:
        photos = f'folder:{fleet.photos}'
        fleet.see('server', photos)
        fleet.see('robot1', photos)
        for robot, (images, _) in wrong.items():
            fleet.see(robot, images, 'self' if images.startswith('bag') else '')
        for robot, (_, words) in wrong.items():
            assert fleet.ended(robot) == 1
            log = fleet.log(robot)
            assert words in log and str(tmp_path) in log and 'Traceback' not in log
        fleet.until_trained('robot1')
        fleet.interrupt('server')
        assert fleet.ended('server') == fleet.ended('robot1') == 0
