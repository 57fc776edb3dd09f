"""What holds for the tests of every package, whichever way pytest is started."""

import gc
import os
import signal

import pytest
from fleet_testing import free_domain

# The processes that tests start inherit this, and libraries read it when they are imported.
DOMAIN = free_domain()
try:
    from fleet_env.fleet import ReachConfig
    from fleet_ros.environment import dds_environment
except ImportError:  # not every package's tests need it
    os.environ['ROS_DOMAIN_ID'] = str(DOMAIN)
    os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'LOCALHOST'
else:  # the network of a fleet: with ROS 2 a node that keeps to this machine otherwise is not met
    os.environ.update(dds_environment(ReachConfig(domain_id=DOMAIN)))
# In the background of a script SIGINT is ignored, and so it would be in what tests start and
# interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ['OMP_NUM_THREADS'] = '1'  # the number decides how sums are rounded
os.environ['PYTHONUNBUFFERED'] = '1'


def pytest_collection_finish():
    """Let later garbage collections skip what the imports have made.

    Such a collection otherwise takes a quarter of a second, and most tests of RRTO begin with one.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def environment():
    """What a test, or a verb that it runs, sets is not for the next: a DDS domain, say."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


try:
    from hypothesis import HealthCheck, settings
except ImportError:  # not every package's tests need it
    pass
else:
    # The same examples everywhere, and no demands on the speed of a machine that is busy. A test
    # that needs more or fewer than 100 says so with `fleet_testing.examples`.
    settings.register_profile('all', derandomize=True, database=None, deadline=None,
                              max_examples=100, suppress_health_check=list(HealthCheck))
    settings.register_profile('few', settings.get_profile('all'), max_examples=10)
    settings.load_profile('all')  # `make test` says --hypothesis-profile=few
