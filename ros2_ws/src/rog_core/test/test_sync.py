"""Synchronisation methods and their minimum transmission amount."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rog_core.errors import ConfigError
from rog_core.sync import minimum_transmission, parse_sync

PUBLISHED = {2: .5, 3: .38197, 4: .31767, 5: .27551, 6: .24512, 7: .22191, 8: .20346, 9: .18835,
             10: .17570, 20: .10977, 30: .08245, 40: .06697}


@pytest.mark.parametrize(('threshold', 'share'), PUBLISHED.items())
def test_minimum_transmission_equals_the_published_table(threshold, share):
    assert minimum_transmission(threshold) == pytest.approx(share, abs=6e-6)


@given(st.integers(1, 1000))
def test_minimum_transmission_solves_its_equation(threshold):
    share = minimum_transmission(threshold)
    assert (1 - share) ** (threshold - 1) == pytest.approx(share, abs=1e-9)


def test_a_threshold_below_one_has_no_minimum():
    with pytest.raises(ConfigError, match='at least 1'):
        minimum_transmission(0)


@pytest.mark.parametrize(('text', 'bound', 'adaptive'), [
    ('bsp', 1, False), ('asp', math.inf, False), ('ssp:0', 1, False), ('ssp:4', 5, False),
    ('rsp:1', 1, True), ('rsp:40', 40, True), (' rsp:4 ', 4, True)])
def test_methods_are_named_by_strings(text, bound, adaptive):
    method = parse_sync(text)
    assert (method.bound, method.adaptive) == (bound, adaptive)
    assert str(method) == text.strip()
    assert parse_sync(str(method)) == method


@pytest.mark.parametrize(('text', 'reason'), [
    ('', 'is unknown'), ('bps', "'bps' is unknown.*bsp, ssp:S, asp or rsp:T"),
    ('RSP:4', 'is unknown'), ('bsp:1', 'takes no threshold'), ('bsp:', 'takes no threshold'),
    ('asp:3', 'takes no threshold'), ('ssp', 'needs a threshold'), ('rsp', 'needs a threshold'),
    ('rsp:', 'not a whole number'),
    ('rsp:four', 'not a whole number'), ('rsp:4.5', 'not a whole number'), ('rsp:0', '1 to 1000'),
    ('rsp:-3', '1 to 1000'), ('ssp:-1', '0 to 1000'), ('rsp:1001', '1 to 1000'),
    ('ssp:nan', 'not a whole number'), ('rsp:4:4', 'not a whole number')])
def test_anything_else_is_refused_with_the_reason(text, reason):
    with pytest.raises(ConfigError, match=reason):
        parse_sync(text)


@pytest.mark.parametrize(('text', 'waits_for'), [
    ('bsp', ['a', 'b']), ('ssp:0', ['a', 'b']), ('ssp:2', ['a']), ('rsp:3', ['a']), ('rsp:4', []),
    ('asp', [])])
def test_a_worker_waits_for_those_that_are_bound_iterations_behind(text, waits_for):
    slowest = {'a': 7, 'b': 9, 'c': 10}
    assert parse_sync(text).held_up_by(10, slowest) == waits_for
