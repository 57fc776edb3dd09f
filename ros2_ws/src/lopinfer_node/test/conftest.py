"""Fixtures of the tests."""

import pytest
from fleet_testing import INFERENCE, forked_subprocess


@pytest.fixture(autouse=True, scope='session')
def forked_trials():
    """Fork the processes in which LOPInfer tries models, instead of starting them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('lopinfer_node.runtime.trial.subprocess', forked_subprocess(*INFERENCE))
        yield
