"""Two child fleets, each with a server, train under a parent server.

The processes run in three DDS domains, one per fleet.
"""

from contextlib import ExitStack, closing

import pytest
from fleet_under_test import Fleet

ROBOTS = 'robot1', 'robot2'


@pytest.fixture
def fleets(tmp_path):
    """Start all fleets; yield the parent fleet and the two child fleets.

    The servers of the child fleets are the robots of the parent fleet.
    """
    with ExitStack() as stack:
        above, one, two = (stack.enter_context(closing(Fleet(folder(tmp_path / name), sync=sync)))
                           for name, sync in (('above', 'local:4'), ('one', 'rsp:4'),
                                              ('two', 'bsp')))
        above.start('server')
        for below, name in ((one, 'robot1'), (two, 'robot2')):
            start_server(below, name, above)
            below.start(*ROBOTS)
        yield above, one, two


def folder(path):
    path.mkdir()
    return path


def start_server(below, name, above, **parameters):
    below.start('server', **{'upstream.robot': name, 'upstream.domain_id': above.domain},
                **parameters)


@pytest.mark.long
def test_fleets_train_together_and_each_alone_while_a_server_is_gone(fleets):
    above, one, two = fleets
    above.until_trained(*ROBOTS, iterations=3)
    above.kill('server')
    for below in one, two:
        below.until_trained(*ROBOTS, iterations=8)
    above.start('server', resume=True)
    above.until_trained(*ROBOTS, iterations=3)

    one.kill('server')
    two.until_trained(*ROBOTS, iterations=8)
    start_server(one, 'robot1', above, resume=True)
    one.until_trained(*ROBOTS, iterations=4)
    above.until_trained(*ROBOTS, iterations=2)

    above.interrupt('server')
    assert above.ended('server') == 0
    above.until(lambda: all(above.robots[name].state == 'stopped' for name in ROBOTS),
                'the fleets say that they have ended')
    for below in one, two:
        below.until_trained(*ROBOTS, iterations=4)
        assert 'this fleet goes on by itself' in below.log('server')
        below.interrupt('server')
        assert below.ended('server') == 0


def test_a_server_above_that_would_have_our_own_names_is_refused(tmp_path):
    with closing(Fleet(tmp_path)) as fleet:
        fleet.start('server', **{'upstream.robot': 'robot1'})
        assert fleet.ended('server') == 1
        assert 'change upstream.domain_id or upstream.namespace' in fleet.log('server')
