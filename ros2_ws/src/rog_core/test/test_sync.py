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


@pytest.mark.parametrize(('threshold', 'more'), [
    (1, 0), (4, 0), (5, .03), (9, .03), (10, .075), (20, .11), (30, .11), (40, .115), (99, .115)])
def test_the_second_share_of_the_artifact_comes_on_top_of_the_minimum(threshold, more):
    plain, second = parse_sync(f'rsp:{threshold}'), parse_sync(f'rsp:{threshold}+second')
    assert second.minimum - plain.minimum == pytest.approx(more)
    assert parse_sync(f'rsp:{threshold}+second-minimum').minimum == pytest.approx(more)


def test_a_threshold_below_one_has_no_minimum():
    with pytest.raises(ConfigError, match='at least 1'):
        minimum_transmission(0)


@pytest.mark.parametrize(('text', 'bound', 'adaptive'), [
    ('bsp', 1, False), ('asp', math.inf, False), ('ssp:0', 1, False), ('ssp:4', 5, False),
    ('rsp:1', 1, True), ('rsp:40', 40, True), (' rsp:4 ', 4, True), ('dssp:3:15', 4, False),
    ('flown', 3, False), ('flown:0:9', 1, False), ('rsp:auto', 4, True), ('rsp:auto:2:8', 2, True),
    ('rsp:4-early', 4, False), ('ssp:4+early', 5, True), ('rsp:4-order-timeout', 4, True),
    ('rsp:9+pipeline+sparse', 9, True)])
def test_methods_are_named_by_strings(text, bound, adaptive):
    method = parse_sync(text)
    assert (method.bound, method.adaptive) == (bound, adaptive)
    assert str(method) == text.strip()
    assert parse_sync(str(method)) == method


@pytest.mark.parametrize(('text', 'reason'), [
    ('', 'is unknown'),
    ('bps', "'bps' is unknown.*bsp, ssp:S, asp, dssp:LOW:HIGH, flown, rsp:T, rsp:auto"),
    ('RSP:4', 'is unknown'), ('bsp:1', 'takes no threshold'), ('bsp:', 'takes no threshold'),
    ('asp:3', 'takes no threshold'), ('ssp', 'needs one threshold'), ('rsp', 'needs one threshold'),
    ('rsp:', 'not a whole number'),
    ('rsp:four', 'not a whole number'), ('rsp:4.5', 'not a whole number'), ('rsp:0', '1 to 1000'),
    ('rsp:-3', '1 to 1000'), ('ssp:-1', '0 to 1000'), ('rsp:1001', '1 to 1000'),
    ('ssp:nan', 'not a whole number'), ('rsp:4:4', 'needs one threshold'),
    ('dssp:5', 'lowest and a highest'),
    ('dssp:9:3', 'lowest threshold, 9, is above the highest, 3'),
    ('flown:3', 'lowest and a highest'), ('rsp:auto:9:3', 'is above'),
    ('rsp:auto:0:3', '1 to 1000'),
    ('rsp:4+fast', "no option 'fast'; it has early"), ('bsp+early', 'it has none'),
    ('dssp:3:15+pipeline', 'it has none'), ('rsp:4+', 'is unknown')])
def test_anything_else_is_refused_with_the_reason(text, reason):
    with pytest.raises(ConfigError, match=reason):
        parse_sync(text)
