"""The server as a managed node in a separate process: how a pause affects programs."""

import sys

import pytest
from lifecycle_driver import driving
from processes import PROGRAMS, Domain

SERVER = '/rrto_server'


@pytest.fixture
def domain():
    made = Domain()
    yield made
    made.close()


@pytest.mark.long
def test_transitions_of_a_server_and_what_programs_are_told(domain):
    server = domain.server('managed', threads=1, autostart='false')
    program = (sys.executable, str(PROGRAMS / 'everything.py'), 'mlp')
    with driving(int(domain.env['ROS_DOMAIN_ID'])) as driver:
        assert driver.state(SERVER) == 'unconfigured' and not driver.change(SERVER, 'activate')
        assert driver.change(SERVER, 'configure') and not driver.change(SERVER, 'configure')
        code, _, err = domain.run('--server', 'managed', '--', *program)
        assert code and 'the server is paused' in err
        for _ in range(2):
            assert driver.change(SERVER, 'activate') and not driver.change(SERVER, 'cleanup')
            code, out, err = domain.run('--server', 'managed', '--', *program)
            assert code == 0 and out == domain.plain(*program[1:]), err
            assert driver.change(SERVER, 'deactivate', 'cleanup', 'configure')
        assert driver.change(SERVER, 'shutdown')
        code, said = server.ended()
        assert code == 0 and 'Traceback' not in said
