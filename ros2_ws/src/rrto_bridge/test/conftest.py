"""Fixtures for tests in which rrto's device and its server run in the process of the test."""

import pytest
import remote
from fleet_testing import mostly_long


# `make test` runs a test only in the modes `rpc` and `replay`. In `rpc` the program waits for every
# call. A test in `replay` also covers the mode `async`, because `replay` works like `async` until
# it finds a sequence. The tests of test_modes.py run in all modes.
@pytest.fixture(params=mostly_long(remote.MODES, 'rpc', 'replay'))
def mode(request):
    return request.param


@pytest.fixture
def engine(mode):
    """A new engine for the device; each test runs once in each mode."""
    return remote.start(mode)


@pytest.fixture
def replay():
    return remote.start('replay')
