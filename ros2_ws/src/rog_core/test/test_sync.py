"""Synchronisation methods and their minimum transmission amount."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rog_core.errors import ConfigError
from rog_core.methods import Team, create
from rog_core.protocol.steps import Full, Gradient, Shards
from rog_core.transfer.plan import minimum_transmission

# All methods with coded gradients work with these 12 robots.
TEAM = Team({f'robot{k}': 1.0 + k % 2 for k in range(12)}, 'raw')
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
    plain, second, alone = (create(f'rsp:{threshold}{options}').sending().minimum
                            for options in ('', '+second', '+second-minimum'))
    assert second == pytest.approx(min(plain + more, 1))
    assert alone == pytest.approx(more)


def test_a_threshold_below_one_has_no_minimum():
    with pytest.raises(ConfigError, match='at least 1'):
        minimum_transmission(0)


@pytest.mark.parametrize(('text', 'bound', 'adaptive'), [
    ('bsp', 1, False), ('asp', math.inf, False), ('ssp:0', 1, False), ('ssp:4', 5, False),
    ('rsp:1', 1, True), ('rsp:40', 40, True), (' rsp:4 ', 4, True), ('dssp:3:15', 4, False),
    ('flown', 3, False), ('flown:0:9', 1, False), ('rsp:auto', 4, True), ('rsp:auto:2:8', 2, True),
    ('rsp:4-early', 4, False), ('ssp:4+early', 5, True), ('rsp:4-order-timeout', 4, True),
    ('rsp:9+pipeline+sparse', 9, True), ('gsgm', 2, False), ('gsgm:4', 4, True),
    ('gsgm:4-early', 4, False), ('gsgm+svrg', 2, False), ('asp+svrg=7', math.inf, False),
    ('bsp+svrg', 1, False), ('gc', 1, False), ('dgh-gc:2:3:20', 1, False),
    ('hgc:1-feedback', 1, False), ('dcgc:0', 1, False),
    ('rsp:4+local=8', 4, True),
    ('rsp:9+pipeline+sparse+local=8+rate=0.7+momentum=0.9', 9, True)])
def test_methods_are_named_by_strings(text, bound, adaptive):
    method = create(text, TEAM)
    assert (method.bound, method.early) == (bound, adaptive)
    assert method.asked == text.strip()
    if 'auto' in text:  # the server sends robots the name of this method with its present threshold
        assert str(method) == text.strip().replace(text.strip().partition('+')[0], f'rsp:{bound}')
    else:
        assert str(method) == text.strip()
    again = create(method.asked, TEAM)
    for name in ('name', 'bound', 'most', 'options', 'numbers', 'by_row', 'row_bound', 'asked'):
        assert getattr(again, name) == getattr(method, name), name
    assert again.sending() == method.sending()


@pytest.mark.parametrize(('text', 'reason'), [
    ('', 'is unknown'),
    ('bps', "'bps' is unknown.*bsp, ssp:S, asp, dssp:LOW:HIGH, flown, rsp:T, rsp:auto, gsgm, "
            'gc'),
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
    ('rsp:4+fast', "no option 'fast'; it has early"), ('dssp:1:2+early', 'it has none'),
    ('dssp:3:15+pipeline', 'it has none'), ('rsp:4+', 'is unknown'),
    ('gsgm:1', '2 to 1000'), ('gsgm+early', 'needs the bound of a row'), ('gsgm:2:3', 'needs one'),
    ('gsgm:4+svrg', 'svrg needs all rows'), ('ssp:2+early+svrg', 'svrg needs all rows'),
    ('rsp:4+svrg', "no option 'svrg'"), ('asp+svrg=0', '1 to 1000'),
    ('asp+svrg=x', 'not a whole number'), ('rsp:4+pipeline=3', 'takes no number'),
    ('gc:x', 'not a whole number'), ('gc:-1', '0 to 1000'), ('gc:1:1:0', '1 to 1000'),
    ('dgh-gc:1:2:3:4', 'must have at most stragglers, groups and rounds'),
    ('rsp:4-local=8', 'be switched off'), ('rsp:4+local=8+local=2', 'given twice'),
    ('rsp:4+local=-8', '1 to 1000'), ('rsp:4+local=-early', "'-early' in .* is not a whole"),
    ('rsp:4+local', 'local needs a number'),
    ('rsp:4+local=0', '1 to 1000'), ('rsp:4+rate=0.5', 'write local=H'),
    ('rsp:4+momentum=0.5', 'write local=H'),
    ('gc+pipeline', "no option 'pipeline'; it has feedback"), ('gsgm-feedback', 'no option')])
def test_anything_else_is_refused_with_the_reason(text, reason):
    with pytest.raises(ConfigError, match=reason):
        create(text, TEAM)


def test_a_coded_method_says_stragglers_groups_and_rounds_or_has_its_own():
    assert create('gc', TEAM).numbers_of_code() == (1, 0, 50)
    assert create('dgh-gc:2', TEAM).numbers_of_code() == (2, 0, 50)
    assert create('dgh-gc:2:3:20', TEAM).numbers_of_code() == (2, 3, 20)
    assert isinstance(create('gc', TEAM).grant('robot0', 0)[1], Shards)
    assert create('gsgm').grant('robot0', 0)[1] == Gradient()
    for text, feedback in (('hgc', True), ('hgc-feedback', False)):
        method = create(text, TEAM)
        assert ('feedback' in method.options) == feedback
        assert method.grant('robot0', 0)[1].feedback == feedback


@pytest.mark.parametrize(('text', 'full'), [
    ('asp', []), ('asp+svrg=3', [1, 5, 9]), ('bsp+svrg=1', [1, 3, 5, 7, 9, 11]),
    ('gsgm+svrg', [1])])
def test_full_gradients_come_first_and_after_every_so_many(text, full):
    method = create(text)
    assert [n for n in range(-1, 12)
            if isinstance(method.grant('robot0', n - 1)[1], Full)] == full


@pytest.mark.parametrize(('text', 'servers'), [('gsgm', True), ('gsgm:4', True), ('gc', True),
                                               ('bsp', False), ('asp+svrg', False)])
def test_momentum_is_the_server_s_or_the_workers(text, servers):
    _, step = create(text, TEAM).grant('robot0', 1)
    robots = isinstance(step, Gradient) and step.momentum
    assert robots != servers
