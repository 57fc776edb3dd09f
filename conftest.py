"""What holds for the tests of every package, whichever way pytest is started."""

import os

from fleet_testing import free_domain

# The processes that tests start inherit this, and libraries read it when they are imported.
os.environ['ROS_DOMAIN_ID'] = str(free_domain())
os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'LOCALHOST'
os.environ['OMP_NUM_THREADS'] = '1'  # tests run side by side; and bit for bit equality depends on it
os.environ['PYTHONUNBUFFERED'] = '1'

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # not every package's tests need it
    pass
else:
    # The same examples everywhere, and no demands on the speed of a machine that is busy. A test
    # that needs more than others says so as a multiple: `2 * settings().max_examples`.
    settings.register_profile('all', derandomize=True, database=None, deadline=None,
                              max_examples=100, suppress_health_check=list(HealthCheck))
    settings.register_profile('few', settings.get_profile('all'), max_examples=10)
    settings.load_profile('all')  # `make test` says --hypothesis-profile=few
