"""What the tests of the device in this process share."""

import pytest
import remote
from fleet_testing import mostly_long


# In `rpc` the program waits for every call; `replay` is `async` until it knows a sequence. What
# test_modes.py tests, it tests in all modes.
@pytest.fixture(params=mostly_long(remote.MODES, 'rpc', 'replay'))
def mode(request):
    return request.param


@pytest.fixture
def engine(mode):
    """The device, new, in each mode."""
    return remote.start(mode)


@pytest.fixture
def replay():
    return remote.start('replay')
