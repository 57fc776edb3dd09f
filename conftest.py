"""Settings for the tests of every package, however pytest is started."""

import os
import signal

import pytest
from fleet_env.command import collect_seldom, never_collect_what_is_loaded
from fleet_testing import free_domain

collect_seldom()

# Set these environment variables first: libraries read them when they are imported, and the
# processes that the tests start inherit them.
DOMAIN = free_domain()
try:
    from fleet_env.settings.fleet import ReachConfig
    from fleet_ros.environment import dds_environment
except ImportError:  # rclpy is not installed; only some tests need it
    os.environ['ROS_DOMAIN_ID'] = str(DOMAIN)
    os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'LOCALHOST'
# Otherwise, rclpy is installed: use the network settings of a fleet. Then the tests do not discover
# nodes on this machine that have other ROS 2 settings.
else:
    os.environ.update(dds_environment(ReachConfig(domain_id=DOMAIN)))
# If a script starts pytest in the background, pytest and its child processes ignore SIGINT. Restore
# the default, because tests send SIGINT to the processes that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
# fixed, because the number of threads decides how sums are rounded
os.environ['OMP_NUM_THREADS'] = '1'
os.environ['PYTHONUNBUFFERED'] = '1'


def pytest_collection_finish():
    """Exclude all objects that exist now from later garbage collections.

    Otherwise each garbage collection takes a quarter of a second, and most tests of RRTO begin
    with one.
    """
    never_collect_what_is_loaded()


@pytest.fixture(autouse=True)
def environment():
    """Restore the environment variables after each test, so that no test affects the next test."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


try:
    from hypothesis import HealthCheck, settings
except ImportError:  # hypothesis is not installed; only some tests need it
    pass
else:
    # Use the same random examples in every run. Set no time limits, because a machine may be
    # busy. A test that needs more or fewer than 100 examples uses `fleet_testing.examples`.
    settings.register_profile('all', derandomize=True, database=None, deadline=None,
                              max_examples=100, suppress_health_check=list(HealthCheck))
    settings.register_profile('few', settings.get_profile('all'), max_examples=10)
    settings.load_profile('all')  # the default; `make test` passes --hypothesis-profile=few
