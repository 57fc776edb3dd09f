"""A program goes on over a link that is slow and loses what is sent while it is dead."""

import sys

import pytest
from processes import PROGRAMS, Domain

# s, Mbit/s; it repeats after 2.1 s. The link is dead for 0.5 s, and loses all that is sent then.
TRACE = '0 2\n0.6 0\n1.1 0.1\n1.6 2\n'


@pytest.mark.long
@pytest.mark.parametrize('mode', ['async', 'replay'])
def test_a_program_goes_on_over_a_slow_link_with_outages(mode, tmp_path):
    domain = Domain()
    trace = tmp_path / 'trace.txt'
    trace.write_text(TRACE)
    program = [str(PROGRAMS / 'everything.py'), 'mlp']
    try:
        domain.server('far', **{'link.trace': trace, 'link.latency': 0.01}).wait('serving as far')
        code, out, err = domain.run('--server', 'far', '--mode', mode, '--link-trace', str(trace),
                                    '--link-latency', '0.01', '--', sys.executable, *program)
        assert (code, err) == (0, '')
        assert out == domain.plain(*program)
    finally:
        domain.close()
