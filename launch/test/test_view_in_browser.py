"""The page of `rog view` in a real browser shows a fleet while it trains, and can end the fleet."""

import shutil
import subprocess
import sys

import pytest
import rclpy
from fleet_env.records.events import Iteration, RunWriter, Start
from fleet_env.records.summary import RobotSummary, Summary, read_summary, write_summary
from fleet_testing import Lines, environment, eventually, free_domain
from fleet_under_test import HERE, write_fleet
from rclpy.context import Context
from rclpy.node import Node
from rog_msgs.msg import FleetStatus, RobotStatus
from rog_ros import qos

pytest.importorskip('nicegui', reason='nicegui is not installed')
webdriver = pytest.importorskip('selenium.webdriver', reason='selenium is not installed')
from selenium.common.exceptions import WebDriverException  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

CHROMIUM = shutil.which('chromium') or shutil.which('chromium-browser') or \
    shutil.which('google-chrome')
DRIVER = shutil.which('chromedriver')

pytestmark = [pytest.mark.long, pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason='needs a browser: apt install chromium chromium-driver')]


@pytest.fixture
def domain():
    return free_domain()


@pytest.fixture
def rog(domain):
    """Yield a function that starts a `rog` command in this domain; end all commands afterwards."""
    running = []

    def start(*words):
        running.append(Lines(subprocess.Popen(
            [sys.executable, '-m', 'rog_cli.main', *map(str, words)], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
            env=environment(domain, HERE))))
        return running[-1]

    yield start
    for command in running:
        if command.process.poll() is None:
            command.interrupt()


class Browser:
    """A headless browser that shows one page."""

    def __init__(self, url):
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for argument in ('--headless=new', '--no-sandbox', '--disable-dev-shm-usage',
                         '--disable-gpu', '--no-proxy-server', '--disable-background-networking',
                         '--window-size=1400,1300'):
            options.add_argument(argument)
        self.driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
        self.url = url
        self.driver.get(url)

    def text(self, name):
        """Return the text of an element; empty while the element does not exist or is redrawn."""
        try:
            return self.driver.find_element('id', name).text
        except WebDriverException:
            return ''

    def cells(self, column):
        """Return robot -> text in the column ``column`` of the table."""
        return self.driver.execute_script('''
            const rows = [...document.querySelectorAll('#robots tbody tr')]
            return Object.fromEntries(rows.filter(r => r.cells.length > 1).map(
                r => [r.cells[0].innerText, r.cells[arguments[0]].innerText]))''', column)

    def can_press(self, name):
        return self.driver.execute_script(
            'return !document.getElementById(arguments[0]).disabled', name)

    def press(self, name):
        eventually(lambda: self._pressed(name), lambda: f'{name} can be pressed: {self.all()}')

    def _pressed(self, name):
        try:
            self.driver.find_element('id', name).click()
        except WebDriverException:  # the element does not exist yet, or another element covers it
            return False
        return True

    def write(self, name, text):
        # when this button can be pressed, text can be entered, too
        eventually(lambda: self.can_press('set_sync'), self.all)
        field = self.driver.find_element('css selector', f'.{name} input')
        field.send_keys(Keys.CONTROL, 'a')
        field.send_keys(text)

    def all(self):
        """Return all text of the page."""
        return self.driver.execute_script('return document.body.innerText')

    def says(self, text):
        eventually(lambda: text in self.all(), lambda: f'{text!r} in {self.all()}')

    def elsewhere(self):
        """Return the URLs that the page has loaded from servers other than its own."""
        loaded = self.driver.execute_script(
            "return performance.getEntriesByType('resource').map(e => e.name)")
        return [url for url in loaded if not url.startswith(self.url)]


@pytest.fixture
def look():
    """Yield a function that opens a browser; close all browsers after the test."""
    opened = []

    def look(view):
        url = view.wait('http://').split()[0]
        opened.append(Browser(url))
        return opened[-1]

    yield look
    for browser in opened:
        browser.driver.quit()


def test_three_robots_train_are_saved_changed_and_stopped_in_order(tmp_path, rog, look):
    file = write_fleet(tmp_path, robots=3)
    fleet = rog('fleet', 'up', file, '--out', tmp_path / 'out')
    view = rog('view', '--port', 0)
    page = look(view)
    robots = {'robot1', 'robot2', 'robot3'}
    eventually(lambda: page.cells(2).keys() == robots and all(page.cells(2).values()), page.all)
    before = page.cells(2)
    eventually(lambda: all(int(now) > int(before[robot])
                           for robot, now in page.cells(2).items()), page.all)
    eventually(lambda: page.driver.find_elements('css selector', '.chart canvas'), page.all)
    assert page.elsewhere() == []

    page.write('method', 'rps:4')
    page.press('set_sync')
    page.says("refused: synchronisation method 'rps:4' is unknown")
    page.write('method', 'bsp')
    page.press('set_sync')
    eventually(lambda: page.text('headline').startswith('bsp'), page.all)
    page.press('save')
    page.says('/checkpoint-')

    page.press('stop')
    page.press('stop-sure')
    eventually(lambda: page.text('state') == 'stopped', page.all)
    assert not page.can_press('stop') and not page.can_press('save')
    code, text = fleet.ended()
    assert code == 0, text
    summary = read_summary(tmp_path / 'out')
    assert summary.notes['reason'] == 'stopped by request' and summary.robots.keys() == robots
    code, text = view.interrupt()  # `rog view` must end although a browser still shows the page
    assert code == 0 and 'Traceback' not in text, text




EVIL = '<img src=x onerror="document.title=1">{{ 7 * 7 }}'


def test_what_strangers_call_themselves_is_text_and_nothing_else(domain, rog, look):
    context = Context()
    rclpy.init(context=context, domain_id=domain)
    stranger = Node('stranger', context=context)
    publisher = stranger.create_publisher(FleetStatus, '/rog/fleet_status', qos.STATUS)
    publisher.publish(FleetStatus(state=EVIL, sync=EVIL, host=EVIL, elapsed=1.0, robots=[
        RobotStatus(robot=EVIL, state=EVIL, waiting_for=EVIL, why=EVIL)], faults=[EVIL]))
    try:
        page = look(rog('view', '--port', 0))
        eventually(lambda: EVIL in page.cells(1), page.all)
        assert EVIL in page.text('causes') and EVIL in page.text('headline')
        assert EVIL in page.text('notice') and EVIL in page.text('events')
        assert page.driver.title == 'ROG fleet'
        assert not page.driver.find_elements('css selector', 'img[src=x]')
        assert not page.can_press('stop')
    finally:
        stranger.destroy_node()
        rclpy.shutdown(context=context)


def test_a_run_is_shown_that_is_over(tmp_path, rog, look):
    with RunWriter(tmp_path) as writer:
        writer.write(Start(0.0, '', 'a:B', 'rsp:4', 1, 'toy'))
        for step in range(1, 9):
            writer.write(Iteration(step, 'robot1', step, 1 / step, .5, .2, .1, 5, 5, 20))
    write_summary(tmp_path, Summary('rsp:4', 'a:B', 1, 9.0, {'robot1': RobotSummary(8)}, 'toy'))
    page = look(rog('view', '--port', 0, tmp_path))
    eventually(lambda: page.cells(2) == {'robot1': '8'}, page.all)
    assert page.text('state') == 'stopped'
    assert not page.driver.find_elements('id', 'stop')
    eventually(lambda: page.driver.find_elements('css selector', '.chart canvas'), page.all)
