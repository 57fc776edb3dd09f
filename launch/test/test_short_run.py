"""A fleet trains from the beginning of a run to its end."""

import pytest
import tiny_task
import torch
from fleet_env.records.events import Evaluation, Fault, Iteration, read_run
from fleet_env.records.summary import read_summary
from fleet_env.versions import Versions
from fleet_under_test import Fleet
from rog_core.model.flat import flatten, unflatten
from rog_core.model.partition import partition_of
from rog_msgs.srv import SetSync
from rog_ps import checkpoint
from rog_ps.directory import kept
from safetensors.torch import load_file


def test_a_run_ends_with_the_same_model_everywhere(tmp_path):
    with Fleet(tmp_path, robots=3, minutes=0.12) as fleet:
        fleet.start('robot1', 'robot2', 'robot3', pace=0.2)
        fleet.until(lambda: len(fleet.robots) == 3, 'all robots look for a server')
        # Start the server last. Otherwise the run could end on a busy machine before the robots
        # are ready.
        fleet.start('server')
        assert {name: fleet.ended(name) for name in fleet.processes} == {
            'server': 0, 'robot1': 0, 'robot2': 0, 'robot3': 0}
    summary = read_summary(fleet.out)
    task = tiny_task.Tiny(seed=3)
    model = task.model()
    partition = partition_of([(n, p.shape) for n, p in model.named_parameters()], 'row', 'onebit')
    untrained = task.evaluate(model)
    master, state, _ = checkpoint.read(kept(fleet.out).newest(), partition)
    assert not torch.equal(torch.from_numpy(master), torch.from_numpy(flatten(model)))
    unflatten(model, master)
    metric = task.evaluate(model)
    assert metric > untrained
    assert summary.sync == 'rsp:4' and summary.notes['reason'] == 'finished'
    assert sorted(summary.robots) == ['robot1', 'robot2', 'robot3']
    for robot in summary.robots.values():
        assert robot.accuracy.before == pytest.approx(untrained, abs=1e-6)
        assert robot.accuracy.after == pytest.approx(metric, abs=1e-6)
        assert 0 < robot.iterations <= state.iteration
        assert robot.compute_s > 0 and robot.energy_j > 0 and robot.bytes_sent > 0
    versions = Versions(fleet.out / 'models')
    final = versions.read(versions.latest())
    assert final.accuracy == pytest.approx(metric, abs=1e-6)
    assert summary.notes['server'] == {'accuracy': final.accuracy, 'iteration': final.iteration}
    plain = task.model()
    plain.load_state_dict(load_file(fleet.out / 'models/latest/model.safetensors'), strict=True)
    assert torch.equal(torch.from_numpy(flatten(plain)), torch.from_numpy(master))
    assert len(versions.numbers()) > 1, 'also versions of before the end'
    events = read_run(fleet.out)
    assert {e.robot for e in events if isinstance(e, Iteration)} == set(summary.robots)
    assert {e.phase for e in events if isinstance(e, Evaluation)} >= {'before', 'online'}


@pytest.mark.long
def test_the_record_waits_for_the_final_model_to_be_evaluated(tmp_path):
    with Fleet(tmp_path, task='tiny_task:Thorough') as fleet:
        fleet.start_all()
        fleet.until_trained('robot1', 'robot2')
        fleet.interrupt('server')
        assert fleet.ended('server') == 0
        assert 'is evaluated by robot1, robot2' in fleet.log('server')
    robots = read_summary(fleet.out).robots
    assert robots['robot1'].accuracy.after == robots['robot2'].accuracy.after > 0
    assert not [e for e in read_run(fleet.out) if isinstance(e, Fault)]
    versions = Versions(fleet.out / 'models')
    assert versions.read(versions.latest()).accuracy == robots['robot1'].accuracy.after


@pytest.mark.long
def test_the_summary_names_the_method_that_was_chosen_last(tmp_path):
    with Fleet(tmp_path) as fleet:
        fleet.start_all()
        fleet.until_trained('robot1', 'robot2')
        client = fleet.node.create_client(SetSync, '/rog/set_sync')
        fleet.until(client.service_is_ready, 'the service is there')
        answer = client.call_async(SetSync.Request(sync='rsp:20'))
        fleet.until(answer.done, 'the server answers')
        fleet.interrupt('server')
        assert fleet.ended('server') == 0
    assert read_summary(fleet.out).sync == 'rsp:20'


@pytest.mark.long
def test_a_model_with_statistics_is_in_plain_pytorch_what_it_is_on_robots_and_server(tmp_path):
    with Fleet(tmp_path, task='tiny_task:Normed') as fleet:
        fleet.start_all()
        fleet.until_trained('robot1', 'robot2')
        fleet.interrupt('server')
        assert fleet.ended('server') == 0
    task = tiny_task.Normed(seed=3)
    plain = task.model()
    state = load_file(fleet.out / 'models/latest/model.safetensors')
    assert state['1.num_batches_tracked'] > 0 and state['3.weight'].equal(state['5.weight'])
    plain.load_state_dict(state, strict=True)
    with torch.no_grad():
        metric = task.evaluate(plain.eval())
    summary = read_summary(fleet.out)
    found = [summary.notes['server']['accuracy'],
             *(robot.accuracy.after for robot in summary.robots.values())]
    assert found == pytest.approx([metric] * 3, abs=1e-6)
