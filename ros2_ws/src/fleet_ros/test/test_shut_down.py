"""A managed node as a process; the test shuts it down as Nav2's lifecycle manager does."""

import subprocess
import sys

import pytest
from fleet_testing import LIMIT, environment, free_domain
from lifecycle_driver import driving

PROGRAM = '''
import sys
from fleet_ros.managed import ManagedNode, ManagedSettings
from fleet_ros.process import run, spin_until

def serve(node, interruption):
    spin_until(node, lambda: node.done, interruption)
    return 7

sys.exit(run(lambda: ManagedNode('thing', ManagedSettings), serve,
             ['--ros-args', '-p', 'autostart:=false'], ()))
'''


@pytest.mark.parametrize('before', [[], ['configure', 'cleanup']])
def test_a_node_says_that_it_was_shut_down_before_its_process_ends(before):
    domain = free_domain()
    process = subprocess.Popen([sys.executable, '-c', PROGRAM], env=environment(domain))
    try:
        with driving(domain) as driver:
            assert driver.state('/thing') == 'unconfigured' and driver.change('/thing', *before)
            assert driver.change('/thing', 'shutdown') and driver.state('/thing') == 'finalized'
            assert process.wait(LIMIT) == 7
    finally:
        process.kill()
