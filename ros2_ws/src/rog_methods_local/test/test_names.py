"""How users write the names of this package's methods, and which names are refused and why."""

import pytest
from rog_core.errors import ConfigError
from rog_core.method_check import check_named
from rog_core.methods import Team, create
from rog_core.methods.base import Standing

TEAM = Team({f'robot{k}': 1.0 for k in range(12)}, 'raw')


def named(text, team=TEAM):
    check_named(text, team)
    return create(text, team)


@pytest.mark.parametrize('text', [
    'local:3', 'diloco:30', 'diloco:30:3-pipeline',
    'diloco:30:3+quorum=2+grace=0.5+rate=0.4+momentum=0.3',
    'diloco:4+pipeline+rate=1+momentum=0', 'trimmed:1'])
def test_a_method_is_built_again_from_its_name(text):
    method = named(text)
    assert (method.bound, method.early) == (1, False)
    assert method.asked == str(method) == text
    again = create(method.asked, TEAM)
    for name in ('name', 'bound', 'most', 'options', 'numbers', 'by_row', 'row_bound', 'asked'):
        assert getattr(again, name) == getattr(method, name), name
    assert again.sending() == method.sending()


@pytest.mark.parametrize(('text', 'reason'), [
    ('local', 'needs one threshold'), ('local:0', '1 to 1000'),
    ('local:3+early', 'it has none'),
    ('diloco', 'needs the number of local steps'), ('diloco:0', '1 to 1000'),
    ('diloco:-2', '1 to 1000'), ('diloco:8:0', '1 to 1000'), ('diloco:8:2:2', 'needs the number'),
    ('diloco:8.5', 'not a whole number'),
    ('diloco:8:3', '8 local steps cannot be divided among 3 fragments'),
    ('diloco:2:4', 'cannot be divided among 4'), ('diloco:8+grace=2', 'write quorum=K'),
    ('diloco:8+quorum', 'quorum needs a number'), ('diloco:8+quorum=0', '1 to 1000'),
    ('diloco:8+quorum=2.5', 'not a whole number'), ('diloco:8+quorum=13', 'the fleet has 12'),
    ('diloco:8-momentum', r'cannot be switched off; leave it out, or write \+momentum=N'),
    ('diloco:8:2+quorum=2-grace', 'be switched off'),
    ('diloco:8+rate=1+rate=2', 'rate is given twice'),
    ('diloco:8+rate=-1', "'-1' in .* must be 0.01 to 10"),
    ('diloco:8+rate=1e-3', "'1e-3' in .* must be 0.01"),
    ('diloco:8+quorum=2+grace=x', "'x' .* is not a number"),
    ('diloco:8+quorum=2+grace=nan', '0 to 3600'), ('diloco:8+rate=0', '0.01 to 10'),
    ('diloco:8+momentum=1', '0 to 0.999'), ('diloco:8+rate', 'rate needs a number'),
    ('diloco:8+early', "no option 'early'")])
def test_anything_else_is_refused_with_the_reason(text, reason):
    with pytest.raises(ConfigError, match=reason):
        named(text)


@pytest.mark.parametrize('sync', ['local:3', 'diloco:3', 'diloco:4:2'])
def test_a_looser_bound_that_still_holds_is_honoured(sync):
    method = named(sync)
    fleet = {'ahead': Standing(30, 30), 'behind': Standing(0, 0)}
    assert method.held_up_by('ahead', fleet) == ['behind']
    assert method.held_up_by('ahead', fleet, least=31) == []
    assert method.held_up_by('behind', fleet) == []
