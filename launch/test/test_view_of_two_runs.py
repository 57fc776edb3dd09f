"""`rog view` in a browser while one run follows another.

The tests use a wide and a narrow screen.

The browser is that of Qt, from PyPI: `pip install PyQt6-WebEngine`. Install it in this
Python, or in the Python whose path the variable QT_PYTHON contains.
"""

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import fleet_testing
import pytest
import rclpy
from fleet_testing import LIMIT, Lines, environment, eventually, free_domain
from fleet_under_test import HERE
from rclpy.context import Context
from rclpy.node import Node
from rog_msgs.msg import FleetStatus, RobotStatus, TrainingStatus
from rog_ros import qos

pytest.importorskip('nicegui', reason='nicegui is not installed')
PYTHON = os.environ.get('QT_PYTHON', sys.executable)
pytestmark = [pytest.mark.long, pytest.mark.skipif(
    subprocess.run([PYTHON, '-c', 'import PyQt6.QtWebEngineCore'], capture_output=True,
                   check=False).returncode != 0, reason='needs a browser: pip install '
                                                        'PyQt6-WebEngine')]
# A script that returns robot -> times of the points in the robot's accuracy curve.
CURVES = '''
    const charts = [...document.querySelectorAll(".chart")].map(
        c => getElement(+c.id.slice(1)).chart);
    const shown = charts.map(c => c.getOption()).find(o => o.title[0].text == "accuracy, %");
    return Object.fromEntries(shown.series.map(s => [s.name, s.data.map(p => p[0])]))
    '''.replace('\n', ' ')
ROBOTS = 'return [...document.querySelectorAll("#robots tbody tr")].map(r => r.cells[0].innerText)'


class Page:
    """A page in a browser."""

    def __init__(self, url):
        program = Path(fleet_testing.__file__).with_name('qt_page.py')
        self._browser = subprocess.Popen(
            [PYTHON, str(program), url], text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={k: v for k, v in os.environ.items() if k not in ('PYTHONPATH', 'LD_LIBRARY_PATH')})

    def ask(self, line):
        self._browser.stdin.write(line + '\n')
        self._browser.stdin.flush()
        return json.loads(self._browser.stdout.readline())

    def says(self, script, wanted):
        eventually(lambda: self.ask(script) == wanted, lambda: f'{self.ask(script)} is {wanted}')

    def close(self):
        self._browser.stdin.close()
        self._browser.wait(LIMIT)


class Run:
    """Publishes statuses as the server and the robots of a run do."""

    def __init__(self, node, number):
        self._node, self._number = node, number
        self._server = node.create_publisher(FleetStatus, '/rog/fleet_status', qos.STATUS)
        self._robots = node.create_publisher(TrainingStatus, '/rog/robots', qos.RELAY)

    def train(self, *robots, since):
        self._server.publish(FleetStatus(
            state='training', sync='rsp:4', run=self._number, incarnation=self._number,
            elapsed=since, rows_total=100, mta=0.25, mta_time=0.1,
            robots=[RobotStatus(robot=name, state='training') for name in robots]))
        for name in robots:
            self._robots.publish(TrainingStatus(
                robot=name, state='computing', iteration=int(since), evaluated_at=int(since),
                accuracy=0.5, rows_total=100, rows_pushed=25, link_rate=math.nan, bandwidth=2.0))


@pytest.fixture
def page_and_node():
    domain = free_domain()
    context = Context()
    rclpy.init(context=context, domain_id=domain)
    node = Node('fleet', context=context)
    view = Lines(subprocess.Popen(
        [sys.executable, '-m', 'rog_cli.main', 'view', '--port', '0'], stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        env=environment(domain, HERE)))
    page = Page(view.wait('http://').split()[0])
    yield page, node
    page.close()
    view.interrupt()
    node.destroy_node()
    rclpy.shutdown(context=context)


def test_a_second_run_begins_its_curves_anew_and_a_narrow_page_does_not_overflow(page_and_node):
    page, node = page_and_node

    def trains(number, *robots):
        """Publish statuses until the page shows at least two points per robot, in order of time."""
        run, began = Run(node, number), time.monotonic()

        def drawn():
            run.train(*robots, since=1 + time.monotonic() - began + 100 * (number == 1))
            curves = page.ask(CURVES) or {}
            return curves.keys() == set(robots) and all(
                len(times) > 1 and times == sorted(times) and (times[0] > 100) == (number == 1)
                for times in curves.values())

        eventually(drawn, lambda: f'run {number} in {page.ask(CURVES)}',
                   lambda: time.sleep(0.5))
        page.says(ROBOTS, list(robots))

    trains(1, 'robot1', 'robot2', 'robot3')
    trains(2, 'robot1', 'robot2')
    assert 'MTA time: how long' in page.ask('return document.body.innerText')
    page.ask('resize 500 900')
    page.says('const page = document.documentElement, outside = [...document.querySelectorAll('
              '".card, .notice, .chart, canvas, #mta")].filter(e => '
              'e.getBoundingClientRect().right > page.clientWidth); '
              'return [window.innerWidth, page.scrollWidth - page.clientWidth, outside.length]',
              [500, 0, 0])
    if out := os.environ.get('PICTURE'):
        page.ask(f'picture {out}')
