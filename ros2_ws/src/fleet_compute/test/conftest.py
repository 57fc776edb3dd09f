"""Fixtures of the tests."""

import time

import pytest


@pytest.fixture
def quick(monkeypatch):
    """Let encoding take no time, so that what is sent does not depend on this machine's speed."""
    monkeypatch.setattr(time, 'thread_time', float)
