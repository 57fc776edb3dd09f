"""Tests of the texts that describe the exit code of a process."""

from argparse import ArgumentTypeError

import pytest
from fleet_env.command import at_least_one, how_it_ended, os_error_text


@pytest.mark.parametrize('code, words', [
    (3, 'ended with exit code 3'), (-9, 'was ended by SIGKILL, as when memory runs out'),
    (-11, 'was ended by SIGSEGV'), (-40, 'was ended by signal 40')])
def test_how_a_process_has_ended_is_said_in_words(code, words):
    assert how_it_ended(code) == words


def test_an_error_of_a_file_names_it_if_it_can():
    assert os_error_text(OSError(28, 'No space left on device', 'a.txt')) == \
        'a.txt: No space left on device'
    assert os_error_text(OSError(28, 'No space left on device')) == \
        '[Errno 28] No space left on device'


@pytest.mark.parametrize('text', ['0', '-1', '1.5', 'x', ''])
def test_a_number_below_one_is_refused(text):
    assert at_least_one('7') == 7
    with pytest.raises(ArgumentTypeError, match='must be a whole number of at least 1, got'):
        at_least_one(text)
