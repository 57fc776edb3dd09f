"""CRIMP, the mapping task: a map learns what robots see, and robots find their poses in it."""

import itertools

import pytest
import torch
from rog_tasks.crimp import Crimp
from rog_tasks.crimp.frames import Camera, Poses, trajectory_error
from rog_tasks.crimp.implicit_map import TRUNCATION, ImplicitMap
from rog_tasks.crimp.scene import EYES, HEIGHT, film, flat, way
from rog_tasks.crimp.tracking import align, turn
from rog_tasks.errors import TaskError
from rog_tasks.task import load_task

TINY = {'size': [3.2, 3.2], 'furniture': 1, 'width': 20, 'cell': 0.2, 'rays': 128, 'parts': 6}
CAMERA = Camera(20, 15, 10.0, 10.0, 9.5, 7.0)


@pytest.fixture(scope='module', autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def trained(task, robots, steps):
    """Train ``robots`` robots by SGD on the mean of their gradients; return each robot's model."""
    models = [task.model() for _ in range(robots)]
    batches = [task.batches(rank, robots) for rank in range(robots)]
    optimizers = [torch.optim.SGD(m.parameters(), .1, momentum=.9, nesterov=True) for m in models]
    for _ in range(steps):
        for model, batch in zip(models, batches, strict=True):
            model.zero_grad(set_to_none=False)
            task.loss(model, next(batch)).backward()
        for parameters in zip(*(m.parameters() for m in models), strict=True):
            mean = sum(p.grad for p in parameters) / robots
            for parameter in parameters:
                parameter.grad = mean.clone()
        for optimizer in optimizers:
            optimizer.step()
    return models


@pytest.fixture(scope='module')
def alone():
    task = load_task('rog_tasks.crimp:Crimp', TINY, seed=1)
    return task, trained(task, 1, 130)[0]


def test_a_robot_finds_its_way_and_the_map_has_surfaces_where_they_are(alone):
    task, model = alone
    robot = next(task.batches(0, 1))
    assert task.evaluate(model) > .8
    assert task.trajectory_error(model) < .15 * robot.worst()
    assert task.depth_error(model) < .7 * task.depth_error(task.model())


def test_a_robot_touches_few_rows(alone):
    task, _ = alone
    model = task.model()
    batch = task.batches(0, 1)
    task.loss(model, next(batch)).backward()
    rows = [(grid.grad != 0).any(1).float().mean() for grid in model.grids]
    assert 0 < rows[1] < .5 and rows[1] < rows[0]


def test_a_robot_that_has_not_moved_is_as_wrong_as_one_that_never_does():
    task = Crimp(**TINY)
    model = task.model()
    task.loss(model, next(task.batches(1, 2)))
    assert task.evaluate(model) == pytest.approx(0, abs=1e-6)


def test_the_metric_of_the_server_is_that_of_the_map():
    task = Crimp(**TINY)
    model = task.model()
    assert task.evaluate(model) == 0 and task.depth_error(model) == 1
    assert torch.isnan(torch.tensor(task.trajectory_error(model)))


def test_equal_seeds_give_equal_training():
    def weights(seed):
        model, = trained(Crimp(seed=seed, **TINY), 1, 15)
        return torch.cat([p.detach().flatten() for p in model.parameters()])
    one, two, other = weights(3), weights(3), weights(4)
    assert torch.equal(one, two) and not torch.equal(one, other)


def test_the_global_random_state_is_left_alone():
    before = torch.get_rng_state()
    trained(Crimp(**TINY), 1, 2)
    assert torch.equal(torch.get_rng_state(), before)


def test_robots_of_a_fleet_drive_parts_that_meet():
    ways = [way(8, 6.4, part, 3).positions for part in range(3)]
    for here, there in zip(ways, ways[1:] + ways[:1], strict=True):
        apart = torch.cdist(here, there)
        assert apart.min() < .05 < 2 < apart.max()
    steps = torch.cat([one.diff(dim=0).norm(dim=1) for one in ways])
    assert steps.max() < .1


def test_what_is_portrayed():
    task = Crimp(**TINY)
    model, = trained(task, 1, 40)
    robot, server = task.portrait(model), task.portrait(task.model())
    assert robot['truth'].shape[1] == robot['estimate'].shape[1] == 3
    assert 1 < len(robot['estimate']) <= len(robot['truth'])
    assert server['top'].shape == (*server['height'].shape, 3) and server['extent'].shape == (4,)


@pytest.mark.parametrize('options, words', [
    ({'every': 0}, 'every is 0'), ({'cell': 5.0}, 'cell is 5'), ({'rays': 1}, 'rays is 1'),
    ({'size': [1, 2]}, 'size is'), ({'size': [100, 100], 'cell': 0.01}, 'more than 100 million'),
    ({'frames': 'kitti:x'}, 'must be one of tum'),
    ({'frames': 'tum:x', 'bounds': 3}, 'bounds are 3'),
    ({'frames': 'tum:x', 'bounds': [[0, 0, 0], [1, 1, -1]]}, 'bounds are'),
    ({'frames': 'tum:x', 'bounds': [[0, 0, 0], [1e4, 1e4, 1e4]]}, '100 million cells'),
    ({'frames': 'tum:x', 'bounds': [[0, 0, 0], [1, 1, float('nan')]]}, 'bounds are')])
def test_options_that_cannot_be_are_named(options, words):
    with pytest.raises(TaskError, match=words):
        Crimp(**options)


def test_methods_that_deal_shards_out_are_refused():
    with pytest.raises(TaskError, match='does not implement shard'):
        Crimp(**TINY).shard(0, 2)


# -- the parts of the task ---


def test_rays_meet_the_walls_where_they_are():
    scene = flat(4.0, 4.0, 0, 0)
    origin = torch.tensor([[1.0, 1.0, EYES]])
    directions = torch.tensor([[-1.0, 0, 0], [0, -2, 0], [0, 0, 1], [0, 0, -1], [-1, -1, 0]])
    distance, colour = scene.cast(origin.expand(5, 3), directions)
    assert distance.tolist() == pytest.approx([1, .5, HEIGHT - EYES, EYES, 1])
    assert colour.min() >= 0 and colour.max() <= 1
    again = flat(4.0, 4.0, 0, 0)
    assert torch.equal(again.boxes, scene.boxes) and torch.equal(again.waves, scene.waves)


def test_frames_of_a_flat_show_its_walls():
    scene, poses = flat(4.0, 4.0, 1, 0), way(4, 4, 0, 4)
    frames = film(scene, CAMERA, poses, 0.0, 0)
    rays = torch.einsum('nij,pj->npi', poses.rotations, CAMERA.rays())
    points = poses.positions[:, None] + frames.depths[..., None] * rays
    low, high = scene.bounds
    assert (points > low - 1e-3).all() and (points < high + 1e-3).all()
    identity = poses.rotations @ poses.rotations.transpose(1, 2)
    assert torch.allclose(identity, torch.eye(3).expand_as(identity), atol=1e-5)
    assert torch.allclose(torch.linalg.det(poses.rotations), torch.ones(len(poses)), atol=1e-5)


def test_a_cell_learns_from_the_mean_of_what_is_around_it():
    """The gradient of a cell does not grow with the number of points around the cell.

    With 50 times as many points, it only comes closer to the mean of the points' gradients, here 1.
    """
    low, high = torch.zeros(3), torch.ones(3) * 2
    points = torch.rand(400, 3, generator=torch.Generator().manual_seed(0)) * 2
    changes = []
    for copies in (1, 50):
        model = ImplicitMap(low, high)
        model(points.repeat(copies, 1))[0].mean().backward()
        changes.append(float(model.grids[0].grad.max()))
    assert .5 < changes[0] < 1 and changes[1] == pytest.approx(1, rel=.02)


def test_points_beyond_the_map_are_taken_as_at_its_border():
    model = ImplicitMap(torch.zeros(3), torch.ones(3))
    distance, colour = model(torch.tensor([[-5.0, .5, .5], [9, 9, 9]]))
    assert distance.tolist() == [1, 1] and colour.shape == (2, 3)


class Ball(ImplicitMap):
    """An exact map of a ball and a wall, with colours that depend on the place."""

    def __init__(self):
        super().__init__(torch.zeros(3), torch.ones(3))

    def forward(self, points, gain=1.0):
        ball = (points - torch.tensor([0.0, 0.3, 2.0])).norm(dim=1) - .5
        return torch.minimum(ball, 2.5 - points[:, 2]) / TRUNCATION, .5 + .3 * torch.sin(points)


def test_surfaces_are_cast_and_poses_found():
    ball = Ball()
    rays = CAMERA.rays()
    depth = ball.cast(torch.zeros(len(rays), 3), rays, 4.0, .05)
    assert (ball(depth[:, None] * rays)[0].abs() < .02).all()
    points = depth[:, None] * rays
    colours = ball(points)[1]
    for motion in ([.08, -.05, .1, .06, .04, -.08], [0, 0, -.1, .1, 0, 0]):
        start = turn(torch.tensor(motion[:3])), torch.tensor(motion[3:])
        rotation, position = align(ball, points, colours, *start)
        assert position.norm() < .01 and (rotation - torch.eye(3)).abs().max() < .01


def test_in_unknown_space_a_pose_stays_as_it_is():
    model, pose = ImplicitMap(torch.zeros(3), torch.ones(3)), (torch.eye(3), torch.ones(3))
    assert align(model, torch.rand(100, 3), torch.rand(100, 3), *pose) == pose


def test_the_error_of_a_trajectory_is_that_after_the_best_rigid_motion():
    truth = torch.rand(50, 3, generator=torch.Generator().manual_seed(1))
    moved = truth @ turn(torch.tensor([.3, -1.0, 2.0])).T + torch.tensor([5.0, -3, 1])
    assert trajectory_error(moved, truth) < 1e-5
    assert trajectory_error(-truth, truth) > .1  # a mirror image is not a rigid motion
    noisy = truth + .1 * torch.randn(50, 3, generator=torch.Generator().manual_seed(2))
    assert trajectory_error(noisy, truth) == pytest.approx(.17, rel=.15)


def test_poses_are_chosen_like_rows():
    poses = Poses(torch.eye(3).expand(4, 3, 3), torch.arange(12.0).view(4, 3))
    assert len(poses[1:3]) == 2 and poses[1:3].positions[0, 0] == 3


@pytest.mark.long
def test_three_robots_map_more_than_one():
    task = Crimp(seed=0, size=[4.8, 4.0], width=24, cell=.15, parts=3)
    models = trained(task, 3, 200)
    alone = trained(Crimp(seed=0, size=[4.8, 4.0], width=24, cell=.15, parts=3), 1, 200)
    assert all(task.evaluate(model) > .8 for model in models)
    assert task.depth_error(models[0]) < .7 * task.depth_error(alone[0])


def test_batches_are_the_robot_itself():
    first, second = itertools.islice(Crimp(**TINY).batches(0, 1), 2)
    assert first is second
    with pytest.raises(TaskError, match='rank 2'):
        Crimp(**TINY).batches(2, 2)
