"""Fleet files: the meaning of their settings, and how invalid files are refused."""

import pytest
import yaml
from fleet_env.errors import FleetFileError
from fleet_env.settings.base import knobs
from fleet_env.settings.fleet import FleetConfig, RobotConfig, StragglerConfig
from fleet_env.settings.fleet_file import (
    dump_fleet,
    known_fleets,
    link_trace,
    load_fleet,
    read_fleet,
    read_run_fleet,
    with_overrides,
    with_robots,
    write_run_fleet,
)
from pydantic import ValidationError

GOOD = '''\
name: garden
description: three robots under trees
minutes: 2
training:
  sync: rsp:4
  learning_rate: 1e-3
  pace: 0.1
  task_options: {fog: 0.4, split: iid}
link: {trace: indoor, scale: 0.1, offset: 60}
heartbeat: {period: 0.2, limit: 2}
robots:
  - name: robot1
  - name: robot2
    pace: 0.5
    link: {trace: mine.txt, scale: 2}
    power: {computing: 9}
  - name: robot3
    link: {offset: 7}
'''


@pytest.fixture
def path(tmp_path):
    (tmp_path / 'mine.txt').write_text('0 4\n1 2\n')
    file = tmp_path / 'garden.yaml'
    file.write_text(GOOD)
    return file


@pytest.mark.parametrize('name', ['inf', 'e5', 'on', 'off', 'yes', 'no', 'true', 'nan'])
def test_what_yaml_reads_as_a_number_or_a_truth_value_is_a_name_where_a_name_is_expected(
        path, name):
    path.write_text(GOOD.replace('robot1', name).replace(
        'three robots under trees', '12:30').replace('garden', '1_000'))
    fleet = read_fleet(path)
    assert (fleet.name, fleet.description, fleet.robots[0].name) == ('1_000', '12:30', name)
    assert read_fleet(path) == fleet and fleet.minutes == 2
    path.write_text(dump_fleet(fleet))
    assert read_fleet(path).robots == fleet.robots


def test_the_options_of_a_task_keep_the_types_of_yaml(path):
    path.write_text(GOOD.replace('fog: 0.4, split: iid', 'fog: 1_000, split: on'))
    assert read_fleet(path).training.task_options == {'fog': 1000, 'split': True}


def test_a_robot_inherits_settings_of_the_fleet(path, tmp_path):
    fleet = read_fleet(path)
    one, two, three = fleet.robots
    assert (one.link.trace, one.link.scale, one.link.offset) == ('indoor', .1, 0)
    assert (two.link.trace, two.link.scale, two.link.offset) == (str(tmp_path / 'mine.txt'), 2, 60)
    assert three.link.offset == 7
    assert [robot.pace for robot in fleet.robots] == [.1, .5, .1]
    assert two.power.computing == 9 and two.power.stalled == 4.04
    assert fleet.training.learning_rate == .001
    assert fleet.training.task_options == {'fog': .4, 'split': 'iid'}
    assert fleet.rank('robot3') == 2
    with pytest.raises(KeyError, match='robot1, robot2, robot3'):
        fleet.robot('robot9')


def test_only_name_and_robots_are_needed(tmp_path):
    file = tmp_path / 'f.yaml'
    file.write_text('name: small\nrobots: [{name: robot1}]\n')
    fleet = read_fleet(file)
    assert fleet.network.interface == 'lo' and fleet.training.sync == 'rsp:20+pipeline+sparse'


def test_settings_of_virtual_time(tmp_path):
    file = tmp_path / 'f.yaml'
    file.write_text("""\
name: small
channel: {shared: false}
training: {codec_pace: 0.3, traffic: convmlp-m}
robots: [{name: robot1}, {name: robot2, codec_pace: 0.7}]
""")
    fleet = read_fleet(file)
    assert not fleet.channel.shared and fleet.training.traffic == 'convmlp-m'
    assert [robot.codec_pace for robot in fleet.robots] == [.3, .7]
    changed = with_overrides(fleet, {'channel.shared': 'true', 'training.codec_pace': '0.5',
                                     'training.traffic': ''})
    assert changed.channel.shared and changed.training.traffic == ''
    assert [robot.codec_pace for robot in changed.robots] == [.5, .7]
    file.write_text(dump_fleet(fleet))
    assert read_fleet(file) == fleet
    plain = with_overrides(fleet, {'channel': {}, 'training': {}})
    assert plain.channel.shared and plain.training.codec_pace == 0


def test_a_setting_that_became_a_constant_is_refused_unless_it_has_the_value_of_the_constant(
        tmp_path):
    file = tmp_path / 'f.yaml'
    text = 'name: old\nrobots: [{name: robot1}]\nserver: {implausible: %s, keep: 4}\n'
    file.write_text(text % '100.0')
    fleet = read_fleet(file)
    assert fleet.server.keep == 4
    file.write_text(text % '0.0')
    with pytest.raises(FleetFileError, match='line 3: server.implausible is no setting any more: '
                                             'it is always 100; delete it'):
        read_fleet(file)
    with pytest.raises(FleetFileError, match='security.open'):
        with_overrides(fleet, {'upstream.open': True})


def test_capacities_and_stragglers(tmp_path):
    file = tmp_path / 'f.yaml'
    file.write_text("""\
name: small
training: {nesterov: false}
stragglers: {probability: 0.1, time: 2}
robots:
  - {name: robot1, capacity: 5}
  - {name: robot2, stragglers: {probability: 0.5, drop_probability: 0.01, drop_time: 20}}
""")
    fleet = read_fleet(file)
    one, two = fleet.robots
    assert (one.capacity, two.capacity) == (5, 1) and not fleet.training.nesterov
    assert one.stragglers == StragglerConfig(probability=.1, time=2) == fleet.stragglers
    assert two.stragglers == StragglerConfig(
        probability=.5, time=2, drop_probability=.01, drop_time=20)
    assert fleet.to_dict()['robots'] == [{'name': 'robot1', 'capacity': 5}, {
        'name': 'robot2',
        'stragglers': {'probability': .5, 'drop_probability': .01, 'drop_time': 20}}]
    changed = with_overrides(fleet, {'stragglers.time': '3', 'stragglers.probability': '0.2',
                                     'robots.robot2.capacity': '4'})
    assert [robot.stragglers.time for robot in changed.robots] == [3, 3]
    assert [robot.stragglers.probability for robot in changed.robots] == [.2, .5]
    assert [robot.capacity for robot in changed.robots] == [5, 4]
    more = with_robots(fleet, 3)
    assert more.robots[:2] == fleet.robots
    assert more.robots[2].stragglers == fleet.stragglers and more.robots[2].capacity == 1
    file.write_text(dump_fleet(more))
    assert read_fleet(file) == more


def test_a_fleet_cannot_be_changed(path):
    with pytest.raises(ValidationError, match='frozen'):
        read_fleet(path).seed = 3


def test_a_written_fleet_reads_back(path, tmp_path):
    fleet = read_fleet(path)
    file = tmp_path / 'elsewhere' / 'f.yaml'
    file.parent.mkdir()
    file.write_text(dump_fleet(fleet))
    assert read_fleet(file) == fleet
    assert yaml.safe_load(dump_fleet(fleet)) == fleet.to_dict()


def test_every_setting_says_what_it_is():
    found = [*knobs(FleetConfig), *knobs(RobotConfig)]
    assert len(found) > 50
    assert all(knob.description and not knob.description.endswith('.') for knob in found)


@pytest.mark.parametrize('old, new, line, words', [
    ('minutes: 2', 'minuts: 2', 3, "unknown key 'minuts'; did you mean 'minutes'"),
    ('  sync:', '  synk:', 5, "'training.synk'; did you mean 'sync'"),
    ('    pace: 0.5', '    pase: 0.5', 14, 'pase.*pace'),
    ('scale: 2', 'scale: fast', 15, 'link.scale must be a number'),
    ('scale: 0.1', 'scale: 0', 9, 'greater than 0'),
    ('minutes: 2', 'minutes: true', 3, 'minutes must be a number, not True'),
    ('minutes: 2', 'minutes: .inf', 3, 'finite'),
    ('minutes: 2', 'seed: 1.5', 3, 'seed must be a whole number'),
    ('minutes: 2', 'seed: -1', 3, 'at least 0'),
    ('minutes: 2', 'minutes:', 3, 'not nothing'),
    ('sync: rsp:4', 'sync: [4]', 5, 'sync must be text'),
    ('sync: rsp:4', 'sync: ""', 5, 'sync is empty'),
    ('sync: rsp:4', 'granularity: rows', 5, "did you mean 'row'"),
    ('sync: rsp:4', 'task: cruda', 5, 'package.module:Class'),
    ('sync: rsp:4', 'momentum: 1', 5, 'less than 1'),
    ('{trace: indoor', '{emulate: maybe', 9, 'true or false'),
    ('sync: rsp:4', 'batch_size: 0', 5, 'at least 1'),
    ('sync: rsp:4', 'codec_pace: -1', 5, 'at least 0'),
    ('sync: rsp:4', 'traffic: Conv MLP', 5, 'convmlp-m'),
    ('minutes: 2', 'channel: {shared: 3}', 3, 'true or false'),
    ('minutes: 2', 'stragglers: {probability: 1.1}', 3, 'at most 1'),
    ('minutes: 2', 'stragglers: {drop_time: -1}', 3, 'at least 0'),
    ('    pace: 0.5', '    capacity: 0', 14, 'greater than 0'),
    ('{fog: 0.4, split: iid}', '7', 8, 'must be a mapping'),
    ('minutes: 2', 'network: {domain_id: 233}', 3, 'at most 232'),
    ('minutes: 2', 'name: again', 3, 'occurs twice'),
    ('name: robot3', 'name: robot2', 17, 'two robots.*line 13'),
    ('name: robot3', 'name: _robot3', 17, 'single underscores, first a letter.*at most 64'),
    ('name: robot3', 'name: 1_000', 17, "is '1_000'; it must be text like this: robot1"),
    ('name: robot3', 'name: null', 17, 'name must be text, not nothing'),
    ('name: robot3', 'name: robot__3', 17, 'single underscores'),
    ('name: robot3', f'name: {"r" * 65}', 17, 'at most 64 characters'),
    ('name: garden', f'name: {"g" * 51}', 1, 'at most 50 characters'),
    ('name: robot3', 'name: rog', 17, 'namespace of the parameter server'),
    ('- name: robot3', '- pace: 1', 17, 'no name'),
    ('limit: 2', 'limit: 0.1', 10, 'longer than heartbeat.period'),
    ('mine.txt', 'none.txt', 15, 'no file .*none.txt'),
    ('minutes: 2', 'minutes: [', 5, 'not valid YAML'),
    ('name: garden', 'x: 1', 1, 'unknown key'),
    ('link: {trace: indoor', 'link: &a {x: *a, trace: indoor', 0, 'nested too deeply'),
    ('name: garden', 'name: !!timestamp soon', 1, "'soon' cannot be read as timestamp"),
    ('name: garden', 'name: !!bool 7', 1, "'7' cannot be read as bool"),
    ('- name: robot1', '- name: server', 12, "the name of the parameter server's process"),
])
def test_a_wrong_file_is_refused_with_line_and_key(path, old, new, line, words):
    assert old in GOOD
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(FleetFileError, match=words) as caught:
        read_fleet(path)
    assert caught.value.file == str(path) and caught.value.line == line


@pytest.mark.parametrize('text, words', [
    ('', 'is empty'), ('- a\n', 'mapping'), ('robots: [{name: a}]\n', "'name' is missing"),
    ('name: a\n', "'robots' is missing"), ('name: a\nrobots: []\n', 'at least one'),
    ('name: a\nrobots: 3\n', 'list'), ('name: a\nrobots: [a]\n', 'mapping'), ('a: "\x00"', 'YAML')])
def test_a_file_without_a_fleet_is_refused(path, text, words):
    path.write_text(text)
    with pytest.raises(FleetFileError, match=words):
        read_fleet(path)


def test_merge_keys(path):
    path.write_text("""\
name: garden
robots:
  - &first {name: robot1, pace: 2, capacity: 3}
  - {<<: *first, name: robot2, capacity: 4, link: &slow {rate: 1, scale: 2}}
  - {name: robot3, <<: [{capacity: 5}, *first], link: {<<: *slow, rate: 9}}
""")
    fleet = read_fleet(path)
    assert [(r.name, r.pace, r.capacity) for r in fleet.robots] \
        == [('robot1', 2, 3), ('robot2', 2, 4), ('robot3', 2, 5)]
    assert (fleet.robots[2].link.rate, fleet.robots[2].link.scale) == (9, 2)


@pytest.mark.parametrize('text, line, words', [
    ('- {name: a, <<: 3}', 4, "'<<' must be a mapping"),
    ('- {name: a, <<: [3]}', 4, "'<<' must be a mapping"),
    ('- {name: a, <<: {pace: 1}, <<: {pace: 1}}', 4, "'<<' occurs twice"),
    ('- a', 4, 'robots[0] must be a mapping of keys to values, such as {name: robot1}'),
    ('- &a {name: a, pase: 1}\n- {<<: *a, name: b}', 4, "unknown key 'robots[0].pase'"),
    ('- {name: a}\n- {name: b,\n   <<: {pase: 1}}', 6, "unknown key 'robots[1].pase'"),
    ('- {name: a, name: b}', 4, "the key 'name' occurs twice"),
    ('- &a {name: a, <<: *a}', 4, 'alias')])
def test_wrong_merge_keys_are_named_with_their_line(path, text, line, words):
    path.write_text(f'name: garden\nminutes: 1\nrobots:\n{text}\n')
    with pytest.raises(FleetFileError) as found:
        read_fleet(path)
    assert words in found.value.message and found.value.line == line


def test_exponentially_nested_merges_are_refused(path):
    lines = ['a0: &a0 {x: 1}', *(f'a{n}: &a{n} {{<<: [{", ".join([f"*a{n - 1}"] * 9)}]}}'
                                 for n in range(1, 12))]
    path.write_text('\n'.join(lines))
    with pytest.raises(FleetFileError, match='more than 100000 values; do aliases'):
        read_fleet(path)


def test_exponentially_nested_aliases_are_refused(path):
    lines = ['a: &a [1, 1, 1, 1, 1, 1, 1, 1]']
    lines += [f'{name}: &{name} [{", ".join([f"*{of}"] * 8)}]'
              for of, name in zip('abcdefghij', 'bcdefghijk', strict=True)]
    path.write_text('\n'.join(lines))
    with pytest.raises(FleetFileError, match='more than 100000 values; do aliases'):
        read_fleet(path)


def test_fleets_are_found_by_name(path, tmp_path, monkeypatch):
    monkeypatch.delenv('ROG_FLEET_PATH', raising=False)
    assert load_fleet('garden', [tmp_path]).file == str(path)
    with pytest.raises(FleetFileError, match="did you mean 'garden'"):
        load_fleet('gardn', [tmp_path])
    with pytest.raises(FleetFileError, match='known are garden'):
        load_fleet('x', [tmp_path])
    with pytest.raises(FleetFileError, match='cannot be read'):
        load_fleet('./garden.yaml')
    own = tmp_path / 'own'
    own.mkdir()
    (own / 'garden.yaml').write_text('name: own\nrobots: [{name: robot1}]\n')
    monkeypatch.setenv('ROG_FLEET_PATH', str(own))
    assert load_fleet('garden', [tmp_path]).name == 'own'
    assert list(known_fleets([tmp_path])) == ['garden']


def test_overrides_reach_robots_that_have_no_value_of_their_own(path):
    fleet = read_fleet(path)
    changed = with_overrides(fleet, {
        'training.sync': 'bsp', 'link.scale': '0.5', 'seed': '7',
        'robots.robot1.link.emulate': 'false',
        'training.pace': 0.3, 'robots.robot3.power.stalled': 1, 'training.task_options.fog': .2})
    assert changed.training.sync == 'bsp' and changed.seed == 7
    assert changed.robots[0].link.emulate is False
    assert [robot.link.scale for robot in changed.robots] == [.5, 2, .5]
    assert [robot.pace for robot in changed.robots] == [.3, .5, .3]
    assert changed.robots[2].power.stalled == 1 and changed.robots[2].link.offset == 7
    assert changed.training.task_options == {'fog': .2, 'split': 'iid'}
    assert fleet == read_fleet(path)
    assert with_overrides(fleet, {}) == fleet


@pytest.mark.parametrize('dotted, value, words', [
    ('training.synk', 'bsp', "override training.synk: .*did you mean 'sync'"),
    ('trainin.sync', 'bsp', "did you mean 'training'"),
    ('training.batch_size', 'many', 'whole number'),
    ('training.batch_size', '0', 'at least 1'),
    ('robots.robot7.pace', '1', "no robot 'robot7'"),
    ('seed.x', '1', 'holds no keys'),
    ('robots', '3', 'list'),
])
def test_a_wrong_override_is_refused_by_name(path, dotted, value, words):
    with pytest.raises(FleetFileError, match=words):
        with_overrides(read_fleet(path), {dotted: value})


def test_a_link_follows_its_trace_scaled_and_shifted(path):
    fleet = read_fleet(path)
    assert link_trace(fleet.robots[1].link).rate_at([0, 1]).tolist() == [8, 4]
    one, three = (link_trace(fleet.robots[i].link) for i in (0, 2))
    assert three.rate_at(1.05) == one.rate_at(8.05)


def test_the_settings_of_a_run_name_the_file_beside_which_its_task_is(tmp_path):
    (tmp_path / 'mine').mkdir()
    (tmp_path / 'run').mkdir()
    file = tmp_path / 'mine' / 'team.yaml'
    file.write_text('name: team\nrobots: [{name: robot1}]\nlink: {rate: 5}\n')
    fleet = read_fleet(file)
    write_run_fleet(fleet, tmp_path / 'run')
    assert read_run_fleet(tmp_path / 'run') == fleet
    file.unlink()      # as on another machine
    back = read_run_fleet(tmp_path / 'run')
    assert back.file == str(tmp_path / 'run' / 'fleet.yaml') and back.name == 'team'
    (tmp_path / 'run' / 'fleet.yaml').unlink()
    with pytest.raises(FleetFileError, match='cannot be read'):
        read_run_fleet(tmp_path / 'run')
