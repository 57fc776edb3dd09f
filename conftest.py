"""What holds for the tests of every package, whichever way pytest is started."""

import os

from fleet_testing import free_domain

# The processes that tests start inherit this, and libraries read it when they are imported.
os.environ['ROS_DOMAIN_ID'] = str(free_domain())
os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'LOCALHOST'
os.environ['OMP_NUM_THREADS'] = '1'  # the number decides how sums are rounded
os.environ['PYTHONUNBUFFERED'] = '1'

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
