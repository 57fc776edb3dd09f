"""The buttons of the page are disabled if no control call would succeed.

This is the case without a server, if the server accepts no control calls, and if the key is
missing or wrong.
"""

import asyncio
import contextlib

import pytest
from fleet_link.key import new_key, write_key
from fleet_under_test import Fleet
from rog_cli.commands.control import ControlError
from rog_view.live import Live

pytestmark = pytest.mark.long


@pytest.fixture
def fleet(tmp_path, monkeypatch):
    with Fleet(tmp_path, robots=1) as fleet:
        monkeypatch.setenv('ROS_DOMAIN_ID', str(fleet.domain))
        yield fleet


@contextlib.contextmanager
def seen(fleet, text, key=None):
    """Yield a page that gives ``text`` as the reason why its buttons are disabled.

    If ``text`` is '', the buttons are enabled.
    """
    with Live(key=key) as live:
        fleet.until(lambda: live.view.unable == text if not text else
                    text in live.view.unable + live.view.notice, f'{text!r} is said')
        yield live


def refused(live, service, **values):
    with pytest.raises(ControlError) as refusal:
        asyncio.run(live.ask(service, **values))
    return str(refusal.value)


def test_without_a_server_nothing_can_be_pressed_and_the_page_says_where_it_looks(fleet):
    with seen(fleet, f'DDS domain {fleet.domain}') as live:
        assert 'no parameter server' in refused(live, 'stop')


def test_the_page_knows_how_much_of_the_run_is_left(fleet):
    fleet.start_all()
    with Live() as live:
        fleet.until(lambda: live.view.fleet.left > 0, 'the time left is known')
        assert live.view.fleet.left <= 60 * fleet.fleet.minutes


def test_who_looks_late_sees_what_was_before_also_of_a_robot_that_has_left(fleet):
    fleet.start_all()
    # longer than some periods of the statuses from which the curves are made
    fleet.until(lambda: fleet.status is not None and fleet.status.fastest > 20
                and fleet.status.elapsed > 5, 'it trains')
    fleet.interrupt('robot1')
    fleet.until(lambda: fleet.state('robot1') in ('stopped', 'away'), 'it has left')
    opened = fleet.status.elapsed
    with Live() as live:
        fleet.until(lambda: len(live.view.curves['rows'].get('robot1', ())) > 1, 'it is known')
        assert all(t < opened + 1 for t, _ in live.view.curves['rows']['robot1'])
        robot, = live.view.fleet.robots
        assert robot.heard and robot.iteration > 10
        fleet.until(lambda: len(live.view.events) > 2, 'what happened is known')
        assert [event.text for event in live.view.events] == [
            'the fleet is training', 'has joined', 'has left']
        assert live.view.events[1].t < live.view.events[2].t < opened + 1


def test_what_the_server_cannot_write_is_said_while_it_cannot(fleet):
    fleet.start_all()
    models, moved = fleet.out / 'models', fleet.out / 'elsewhere'
    fleet.until(lambda: fleet.status is not None and fleet.status.fastest > 5, 'it trains')
    models.rename(moved)
    models.write_text('a file in the way')
    with Live() as live:
        fleet.until(lambda: 'server: no model version: ' in live.view.notice, 'it is said')
        models.unlink()
        moved.rename(models)
        fleet.until(lambda: live.view.notice == '', 'it is written again')
        failed, mended = (event for event in live.view.events if event.robot == ''
                          and 'no model version' in event.text)
        assert failed.text.startswith('no model version: ')
        assert mended.text == 'mended: no model version'


def test_where_control_calls_are_off_nothing_can_be_pressed(fleet):
    fleet.start('server', **{'security.control': False})
    with seen(fleet, 'takes no control calls (security.control)') as live:
        assert 'takes no control calls' in refused(live, 'stop')
    assert fleet.processes['server'].poll() is None


def test_a_fleet_with_a_key_is_controlled_by_who_has_it(fleet, tmp_path):
    key, other = new_key(), new_key()
    write_key(tmp_path / 'fleet.key', key)
    fleet.start('server', **{'security.key': str(tmp_path / 'fleet.key')})
    with seen(fleet, 'start rog view with --key FILE') as live:
        assert '--key FILE' in refused(live, 'stop')
        assert live.view.fleet.found
    with seen(fleet, 'is not proved by this key', other) as live:
        assert not live.view.fleet.found
    with seen(fleet, '', key) as live:
        assert "'rps:4' is unknown" in refused(live, 'set_sync', sync='rps:4')
        assert asyncio.run(live.ask('set_sync', sync='bsp')) == 'bsp'
        assert asyncio.run(live.ask('stop')) == 'stopping'
    assert fleet.ended('server') == 0
