"""Tests of the texts that describe the exit code of a process."""

import pytest
from fleet_env.command import how_it_ended


@pytest.mark.parametrize('code, words', [
    (3, 'ended with exit code 3'), (-9, 'was ended by SIGKILL, as when memory runs out'),
    (-11, 'was ended by SIGSEGV'), (-40, 'was ended by signal 40')])
def test_how_a_process_has_ended_is_said_in_words(code, words):
    assert how_it_ended(code) == words
