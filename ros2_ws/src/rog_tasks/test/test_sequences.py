"""Recordings of RGB-D cameras are read from their published folders; errors name what is wrong."""

import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image
from rog_tasks.crimp import Crimp
from rog_tasks.crimp.explorer import _WARM_UP, _facing
from rog_tasks.crimp.frames import Camera, Frames
from rog_tasks.crimp.implicit_map import TRUNCATION, ImplicitMap
from rog_tasks.crimp.sequences import open_sequence
from rog_tasks.errors import DataError, TaskError

COUNT, SIZE = 6, (32, 24)
SCALES = {'tum': 5000, 'replica': 6553.5, 'scannet': 1000, '7scenes': 1000}
POSES = {'scannet': 'pose/4.txt', '7scenes': 'frame-000004.pose.txt'}
BOUNDS = [[-3, -3, -1], [4, 3, 5]]


def pose(number):
    """Return a camera pose: turned by 90 degrees about z, and moved along x."""
    matrix = np.eye(4)
    matrix[:2, :2] = ((0, -1), (1, 0))
    matrix[0, 3] = number / 10
    return matrix


def depth_of(number, size=SIZE):
    """Return the depths of a frame: about 1 m on the left and 2 m on the right.

    The depths grow by 1 cm with each frame. One pixel is unknown.
    """
    metres = np.where(np.arange(size[0]) < size[0] // 2, 1.0, 2.0) + number / 100
    metres = np.tile(metres, (size[1], 1))
    metres[0, 0] = 0
    return metres


def save(path, kind, number, size=SIZE):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((depth_of(number, size) * SCALES[kind]).astype(np.uint16)).save(path)


def picture(path, size=SIZE):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new('RGB', size, (255, 0, 0)).save(path)


def depth_file(root, kind, number):
    return root / {'tum': f'depth/{number}.png', 'replica': f'results/depth{number:06}.png',
                   'scannet': f'depth/{number}.png',
                   '7scenes': f'frame-{number:06}.depth.png'}[kind]


def image_file(root, kind, number):
    return root / {'tum': f'rgb/{number}.png', 'replica': f'results/frame{number:06}.jpg',
                   'scannet': f'color/{number}.jpg',
                   '7scenes': f'frame-{number:06}.color.png'}[kind]


def recorded(root, kind):
    """Write a recording of `COUNT` frames, and return its folder."""
    for number in range(COUNT):
        save(depth_file(root, kind, number), kind, number)
        picture(image_file(root, kind, number), (64, 48) if kind == 'scannet' else SIZE)
    if kind == 'tum':
        half = np.sqrt(.5)
        for name, lines in (
                ('rgb', [f'{n}.0 rgb/{n}.png' for n in range(COUNT)]),
                ('depth', [f'{n}.01 depth/{n}.png' for n in range(COUNT)]),
                ('groundtruth', [f'{n}.005 {n / 10} 0 0 0 0 {half} {half}'
                                 for n in range(COUNT)])):
            (root / f'{name}.txt').write_text('# comment\n' + '\n'.join(lines) + '\n')
    elif kind == 'replica':
        (root / 'traj.txt').write_text('\n'.join(
            ' '.join(map(str, pose(n).flatten())) for n in range(COUNT)) + '\n')
    elif kind == '7scenes':
        for n in range(COUNT):
            np.savetxt(root / f'frame-{n:06}.pose.txt', pose(n))
    else:
        (root / 'pose').mkdir()
        (root / 'intrinsic').mkdir()
        np.savetxt(root / 'intrinsic/intrinsic_depth.txt', np.diag([16.0, 16, 1, 1]))
        for n in range(COUNT):
            np.savetxt(root / f'pose/{n}.txt', pose(n))
    return root


@pytest.fixture(params=sorted(SCALES))
def kind(request):
    return request.param


@pytest.fixture
def root(kind, tmp_path):
    return recorded(tmp_path, kind)


def read(kind, root, share=(0, 1), stride=1, width=16):
    return open_sequence(kind, str(root), share, stride, width)


def test_a_recording_is_read_and_reduced(kind, root):
    frames = read(kind, root)
    assert len(frames) == COUNT and frames.camera.width == 16 and frames.camera.height == 12
    assert frames.depths.shape == (COUNT, 192) and frames.colours.shape == (COUNT, 192, 3)
    row = frames.depths[2].view(12, 16)[5]
    assert row[:8].tolist() == pytest.approx([1.02] * 8, abs=1e-3)
    assert row[8:].tolist() == pytest.approx([2.02] * 8, abs=1e-3)
    assert frames.colours[..., 0].min() > .98 and frames.colours[..., 1:].max() < .02
    for number in range(COUNT):
        expected = torch.tensor(pose(number), dtype=torch.float32)
        assert torch.allclose(frames.truth.rotations[number], expected[:3, :3], atol=1e-5)
        assert torch.allclose(frames.truth.positions[number], expected[:3, 3], atol=1e-5)


@pytest.mark.parametrize('mode', ['P', 'CMYK', 'RGBA'])
def test_colours_are_the_same_in_every_mode_of_an_image_file(tmp_path, mode):
    root = recorded(tmp_path, 'replica')
    for number in range(COUNT):
        file = image_file(root, 'replica', number)
        Image.new('RGB', SIZE, (255, 0, 0)).convert(mode).save(
            file, 'JPEG' if mode == 'CMYK' else 'PNG')
    colours = read('replica', root).colours
    assert colours[..., 0].min() > .98 and colours[..., 1:].max() < .02


def test_a_reduced_camera_sees_the_same_directions(kind, root):
    whole, half = read(kind, root, width=32).camera.rays(), read(kind, root).camera.rays()
    four = whole.view(12, 2, 16, 2, 3).mean((1, 3)).reshape(-1, 3)
    assert torch.allclose(half, four, atol=1e-5)


def test_robots_have_parts_one_after_the_other(kind, root):
    parts = [read(kind, root, (part, 3)).truth.positions[:, 0] for part in range(3)]
    assert torch.cat(parts).tolist() == pytest.approx([n / 10 for n in range(COUNT)])
    assert len(read(kind, root, stride=2)) == COUNT / 2


def test_a_robot_trains_on_a_recording(kind, root):
    task = Crimp(frames=f'{kind}:{root}', bounds=BOUNDS, width=16, cell=.25, rays=64)
    model = task.model()
    loss = task.loss(model, next(task.batches(0, 2)))
    loss.backward()
    assert loss.isfinite() and task.evaluate(model) == pytest.approx(0, abs=1e-6)
    assert task.evaluate(task.model()) == 0  # an untrained map has the largest error


def test_a_depth_image_of_another_size_is_refused_by_name(kind, root):
    save(depth_file(root, kind, 3), kind, 3, (16, 12))
    with pytest.raises(DataError, match=rf'{depth_file(root, kind, 3)} is 16 x 12.*32 x 24'):
        read(kind, root)


@pytest.mark.parametrize('number', ['nan', 'inf', '-inf', 'x', ''])
def test_a_pose_that_is_no_number_is_refused_by_name(kind, root, number):
    if kind in POSES:
        file, where = root / POSES[kind], POSES[kind]
        file.write_text(file.read_text().replace('1.0', number, 1))
    else:
        file = root / ('traj.txt' if kind == 'replica' else 'groundtruth.txt')
        where = rf'{file.name}(, line 5| at 4.005)'
        file.write_text(file.read_text().replace('0.4 ', f'{number} ').replace(
            ' 0.4\n', f' {number}\n'))
    with pytest.raises(DataError, match=where):
        read(kind, root)


def test_what_is_missing_or_damaged_is_named(kind, root):
    broken = image_file(root, kind, 2)
    broken.write_bytes(b'no image')
    with pytest.raises(DataError, match=rf'{broken}: cannot be decoded'):
        read(kind, root)
    picture(broken, SIZE)
    depth_file(root, kind, 1).write_bytes(image_file(root, kind, 0).read_bytes())
    with pytest.raises(DataError, match=rf'{depth_file(root, kind, 1)} is not a depth image'):
        read(kind, root)
    save(depth_file(root, kind, 1), kind, 1)
    broken.unlink()
    with pytest.raises(DataError, match=f'{broken} cannot be read|holds 5 images'):
        read(kind, root)
    with pytest.raises(DataError, match='nowhere is not there'):
        read(kind, root / 'nowhere')
    with pytest.raises(DataError, match='too few for part 1 of 6'):
        read(kind, recorded(root / 'again', kind), (1, 6))


def test_an_image_of_another_size_than_its_depth_is_refused(tmp_path):
    for kind in ('tum', 'replica', '7scenes'):
        root = recorded(tmp_path / kind, kind)
        picture(image_file(root, kind, 2), (64, 48))
        with pytest.raises(DataError, match='32 x 24 pixels, its image .* 64 x 48'):
            read(kind, root)


@pytest.mark.parametrize('line, words', [
    ('1.0 1 2 3 0 0 0 2', 'length 2, not 1'), ('1.0 1 2 3', '3 numbers; 7 are needed'),
    ('x 1 2 3 0 0 0 1', 'line 2')])
def test_a_line_of_a_trajectory_that_cannot_be_is_named(tmp_path, line, words):
    root = recorded(tmp_path, 'tum')
    lines = (root / 'groundtruth.txt').read_text().splitlines()
    (root / 'groundtruth.txt').write_text('\n'.join([lines[0], line, *lines[3:]]))
    with pytest.raises(DataError, match=words):
        read('tum', root)


@pytest.mark.parametrize('name', ['../secret.png', '/etc/passwd'])
def test_a_list_that_leads_out_of_the_folder_is_refused(tmp_path, name):
    root = recorded(tmp_path, 'tum')
    (root / 'rgb.txt').write_text(f'0.0 {name}\n')
    with pytest.raises(DataError, match=r'rgb.txt, line 1: no file below the folder'):
        read('tum', root)


def test_a_matrix_that_is_no_motion_is_refused(tmp_path):
    root = recorded(tmp_path, 'scannet')
    np.savetxt(root / 'pose/2.txt', 2 * np.eye(4))
    with pytest.raises(DataError, match=r'pose/2.txt: the pose is not a rotation'):
        read('scannet', root)


def test_a_missing_pose_is_named(tmp_path):
    for kind, name in POSES.items():
        root = recorded(tmp_path / kind, kind)
        (root / name).unlink()
        with pytest.raises(DataError, match=f'{name} cannot be read'):
            read(kind, root)


def test_a_truncated_depth_image_is_named(kind, root):
    file = depth_file(root, kind, 2)
    file.write_bytes(file.read_bytes()[:-30])
    with pytest.raises(DataError, match=f'{file}: cannot be decoded'):
        read(kind, root)


def test_a_gap_in_the_numbers_is_named(tmp_path):
    root = recorded(tmp_path, '7scenes')
    depth_file(root, '7scenes', 3).unlink()
    with pytest.raises(DataError, match=r'no frame-000003.depth.png, but later ones'):
        read('7scenes', root)
    depth_file(root, '7scenes', 4).rename(root / 'frame-4b.depth.png')
    with pytest.raises(DataError, match=r'frame-4b.depth.png has no number'):
        read('7scenes', root)


def test_what_a_camera_cannot_have_measured_is_not_known(kind, root):
    file = depth_file(root, kind, 2)
    pixels = np.asarray(Image.open(file)).copy()
    pixels[-1], pixels[0] = 65535, 0
    Image.fromarray(pixels).save(file)
    depths = read(kind, root, width=32).depths[2].view(24, 32)
    assert (depths[[0, -1]] == 0).all() and (depths[1:-1] > 1).all()


# -- what a task finds in recordings


def test_bounds_are_what_the_recording_shows(kind, root):
    task = Crimp(frames=f'{kind}:{root}', width=16, cell=.2)
    assert task.model().grids[1].shape == Crimp(
        frames=f'{kind}:{root}', width=16, cell=.2, bounds=task._bounds.tolist()
    ).model().grids[1].shape
    points = open_sequence(kind, str(root), (0, 1), 1, 16).points()
    low, high = task._bounds
    # the map's box extends `TRUNCATION` beyond the surfaces
    assert ((points > low + .2) & (points < high - .2)).all()
    assert (high - low < points.amax(0) - points.amin(0).clamp(max=0) + 1.1).all()


def test_a_stray_depth_does_not_stretch_the_bounds(tmp_path):
    root = recorded(tmp_path, '7scenes')
    before = Crimp(frames=f'7scenes:{root}', width=16)._bounds
    file = depth_file(root, '7scenes', 2)
    pixels = np.asarray(Image.open(file)).copy()
    pixels[13, 13] = 9000
    Image.fromarray(pixels).save(file)
    assert torch.equal(Crimp(frames=f'7scenes:{root}', width=16)._bounds, before)


def test_bounds_cover_the_recordings_of_all_robots(tmp_path):
    for robot, away in enumerate((0, 20)):
        root = recorded(tmp_path / str(robot), '7scenes')
        for number in range(COUNT):
            moved = pose(number)
            moved[1, 3] = away
            np.savetxt(root / f'frame-{number:06}.pose.txt', moved)
    low, high = Crimp(frames=f'7scenes:{tmp_path}/{{rank}}', width=16)._bounds
    assert low[1] < 0 and high[1] > 20


def test_without_the_recording_bounds_must_be_given(tmp_path):
    task = Crimp(frames=f'tum:{tmp_path}/nowhere')
    with pytest.raises(DataError, match=r'nowhere is not there; .*bounds: \[\[x, y, z\]'):
        task.model()
    task = Crimp(frames=f'tum:{tmp_path}/nowhere', bounds=BOUNDS)
    assert np.isnan(task.evaluate(task.model()))  # without the recording, the true depth is unknown


class Wall(ImplicitMap):
    """A map that is exact for a wall at ``z`` metres."""

    def __init__(self, z):
        super().__init__(torch.zeros(3), torch.ones(3))
        self._z = z

    def forward(self, points, gain=1.0):
        return (self._z - points[:, 2]) / TRUNCATION, torch.zeros(len(points), 3)


def test_the_map_of_a_recording_is_measured_where_its_depth_is_known(kind, root):
    task = Crimp(frames=f'{kind}:{root}', bounds=BOUNDS, width=32)
    # Half of the pixels are 1 m to 1.05 m away, and half are 2 m to 2.05 m away. The depth of one
    # pixel in 768 is unknown.
    assert task.depth_error(Wall(2.0)) == pytest.approx(.5, abs=.05)
    for number in range(COUNT):
        file = depth_file(root, kind, number)
        pixels = np.asarray(Image.open(file)).copy()
        pixels[:, :16] = 0
        Image.fromarray(pixels).save(file)
    task = Crimp(frames=f'{kind}:{root}', bounds=BOUNDS, width=32)
    assert task.depth_error(Wall(2.0)) == pytest.approx(.025, abs=.01)


def test_a_picture_from_above_is_that_of_cameras_held_upright(tmp_path):
    root = recorded(tmp_path, '7scenes')
    for number in range(COUNT):  # no rotation: the world's y axis points down, as the camera's does
        moved = np.eye(4)
        moved[0, 3] = number / 10
        np.savetxt(root / f'frame-{number:06}.pose.txt', moved)
    task = Crimp(frames=f'7scenes:{root}', width=16, cell=.2)
    model = task.model()
    assert task._upright.tolist() == [[1, 0, 0], [0, 0, 1], [0, -1, 0]]
    low, high = task._bounds
    expected = torch.stack((low[0], high[0], low[2], high[2])).tolist()
    assert task.portrait(model)['extent'].tolist() == pytest.approx(expected)
    task.loss(model, next(task.batches(0, 1)))
    truth = task.portrait(model)['truth']
    assert truth[:, 0].tolist() == pytest.approx([n / 10 for n in range(COUNT)])


def test_a_neighbour_that_is_not_known_does_not_turn_a_wall():
    camera = Camera(9, 7, 8.0, 8.0, 4.0, 3.0)
    depths = torch.full((1, 63), 2.0)
    whole = _facing(Frames(camera, torch.zeros(1, 63, 3), depths, None), camera.rays())
    depths = depths.clone()
    depths[0, 31] = 0
    holed = _facing(Frames(camera, torch.zeros(1, 63, 3), depths, None), camera.rays())
    assert torch.allclose(holed[depths > 0], whole[depths > 0], atol=1e-5)


# -- recordings with the same bytes as published recordings


def grey_png(path, pixels):
    """Write a 16-bit PNG, high byte first, without a library.

    Files of other programs may differ from the files that our library writes.
    """
    def chunk(kind, data):
        return struct.pack('>I', len(data)) + kind + data + struct.pack('>I',
                                                                        zlib.crc32(kind + data))
    head = struct.pack('>IIBBBBB', pixels.shape[1], pixels.shape[0], 16, 0, 0, 0, 0)
    rows = b''.join(b'\0' + row.astype('>u2').tobytes() for row in pixels)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', head)
                     + chunk(b'IDAT', zlib.compress(rows)) + chunk(b'IEND', b''))


def published_tum(root):
    """Write colour and depth images at 30 Hz, each with its own time stamps, and poses at 100 Hz.

    Frame 5 has no colour image, frame 8 has no depth image, and frames 2 and 3 have no pose.
    """
    began, frames = 1305031102.175304, range(12)
    rgb = {n: began + n / 30 for n in frames if n != 5}
    depth = {n: began - .014972 + n / 30 for n in frames if n != 8}
    poses = [began - .0097 + n / 100 for n in range(45) if not 5 <= n < 15]
    for time in rgb.values():
        picture(root / f'rgb/{time:.6f}.png')
    for number, time in depth.items():
        grey_png(root / f'depth/{time:.6f}.png', np.full(SIZE[::-1], 5000 + 100 * number))
    head = "# {}\n# file: 'rgbd_dataset_freiburg1_xyz.bag'\n# timestamp {}\n"
    for name, what, times in (('rgb', 'color images', rgb), ('depth', 'depth maps', depth)):
        (root / f'{name}.txt').write_text(head.format(what, 'filename') + ''.join(
            f'{time:.6f} {name}/{time:.6f}.png\n' for time in times.values()))
    (root / 'groundtruth.txt').write_text(
        head.format('ground truth trajectory', 'tx ty tz qx qy qz qw')
        + ''.join(f'{time:.4f} {time - began:.4f} 0.6305 1.6380 0.6132 0.5962 -0.3311 -0.3986\n'
                  for time in poses))


def test_a_tum_recording_is_joined_by_time_stamps(tmp_path):
    published_tum(tmp_path)
    frames, whole = read('tum', tmp_path), [0, 1, 4, 6, 7, 9, 10, 11]
    assert frames.depths[:, 0].tolist() == pytest.approx([1 + n / 50 for n in whole])
    assert frames.truth.positions[:, 0].tolist() == pytest.approx(
        [n / 30 for n in whole], abs=.0101)  # the pose nearest in time may be 0.01 s away
    # The real part of the quaternion is last. The quaternion rotates from the camera's to the
    # world's coordinates.
    assert frames.truth.rotations[0, :, 2].tolist() == pytest.approx([-.8814, .0940, -.4630],
                                                                     abs=1e-3)


def test_a_replica_recording_is_read_with_its_scale(tmp_path):
    for number in range(3):
        picture(tmp_path / f'results/frame{number:06}.jpg')
        grey_png(tmp_path / f'results/depth{number:06}.png', np.full(SIZE[::-1], 13107 + number))
    np.savetxt(tmp_path / 'traj.txt', [pose(n).flatten() for n in range(3)])
    frames = read('replica', tmp_path)
    assert frames.depths[:, 0].tolist() == pytest.approx([(13107 + n) / 6553.5 for n in range(3)])
    assert frames.truth.positions[:, 0].tolist() == pytest.approx([0, .1, .2])


def test_a_scannet_recording_goes_by_the_numbers_of_its_frames(tmp_path):
    for folder in ('pose', 'intrinsic'):
        (tmp_path / folder).mkdir()
    # frame 10 comes after frame 9, although `10` comes before `9` in alphabetical order
    for number in range(12):
        picture(tmp_path / f'color/{number}.jpg', (64, 48))
        grey_png(tmp_path / f'depth/{number}.png', np.full(SIZE[::-1], 1000 + number))
        np.savetxt(tmp_path / f'pose/{number}.txt', pose(number), '%.6f')
    for name in ('depth', 'color'):
        focal = 28.892 if name == 'depth' else 58.0
        np.savetxt(tmp_path / f'intrinsic/intrinsic_{name}.txt',
                   [[focal, 0, 15.5, 0], [0, focal, 11.5, 0], [0, 0, 1, 0], [0, 0, 0, 1]], '%.6f')
    frames = read('scannet', tmp_path, width=32)
    assert frames.depths[:, 0].tolist() == pytest.approx([1 + n / 1000 for n in range(12)])
    assert frames.truth.positions[:, 0].tolist() == pytest.approx([n / 10 for n in range(12)])
    assert (frames.camera.fx, frames.camera.cx) == pytest.approx((28.892, 15.5))
    lost = np.full((4, 4), -np.inf)  # ScanNet's mark for an unknown pose
    np.savetxt(tmp_path / 'pose/7.txt', lost, '%f')
    with pytest.raises(DataError, match=r'pose/7.txt: -inf is not a number'):
        read('scannet', tmp_path)


def test_7_scenes_has_a_colour_camera_beside_that_of_the_depth(tmp_path):
    """The reader corrects for the distance between the colour camera and the depth camera.

    A red square is 1 m ahead. The colour camera sees it 25 mm further left, and smaller.
    """
    for number in range(2):
        pixels = np.zeros((480, 640, 3), np.uint8)
        # at a distance of 1 m, one metre is 525 pixels; the square's centre is in column
        # 320 - 525 * 0.025
        pixels[188:293, 255:360] = (255, 0, 0)
        Image.fromarray(pixels).save(tmp_path / f'frame-{number:06}.color.jpg', quality=95)
        grey_png(tmp_path / f'frame-{number:06}.depth.png', np.full((480, 640), 1000))
        np.savetxt(tmp_path / f'frame-{number:06}.pose.txt', pose(number), '%.7e', '\t')
    frames = read('7scenes', tmp_path, width=640)
    red = frames.colours[1].view(480, 640, 3)[..., 0] > .5
    rows, columns = red.any(1).nonzero()[:, 0], red.any(0).nonzero()[:, 0]
    assert (int(rows[0]), int(rows[-1])) == pytest.approx((240 - 58, 240 + 58), abs=2)
    assert (int(columns[0]), int(columns[-1])) == pytest.approx((320 - 58, 320 + 58), abs=2)
    assert (frames.camera.fx, frames.camera.cx) == (585, 320)
    np.savetxt(tmp_path / 'camera-intrinsics.txt', [[580, 0, 319], [0, 581, 239], [0, 0, 1]])
    camera = read('7scenes', tmp_path, width=640).camera
    assert (camera.fx, camera.fy, camera.cx, camera.cy) == (580, 581, 319, 239)


def dark(root, kind, numbers):
    """Write depth images in which every depth is unknown."""
    for number in numbers:
        Image.new('I;16', SIZE).save(depth_file(root, kind, number))


def test_a_recording_without_any_depth_is_refused(kind, root):
    """A recording in which every depth is unknown is refused.

    In an earlier version, the robot of this recording trained without data, and its loss was NaN.
    """
    dark(root, kind, range(COUNT))
    with pytest.raises(DataError, match=r'no depth is known in any of 6 frames, .*0.*\.png'):
        read(kind, root)


def test_a_camera_may_begin_without_depth(kind, root):
    """A robot can train although the first images of its camera contain no depth.

    Such images are common at the start of real depth cameras. In an earlier version, the loss was
    NaN until the first depth came.
    """
    dark(root, kind, range(3))
    task = Crimp(frames=f'{kind}:{root}', every=1, width=16, bounds=BOUNDS)
    model = task.model()
    robot = task.batches(0, 1)
    losses = []
    for _ in range(_WARM_UP + COUNT):
        loss = task.loss(model, next(robot))
        loss.backward()
        losses.append(loss.item())
    assert losses[0] == 0 and np.isfinite(losses).all() and losses[-1] > 0
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize('matrix', [
    [[0, 0, 16], [0, 16, 12], [0, 0, 1]], [[-16, 0, 16], [0, 16, 12], [0, 0, 1]],
    [[600, 0, 640], [0, 600, 360], [0, 0, 1]], [[16, 0, 0], [0, 16, 0], [16, 12, 1]],
    [[16, 5, 16], [0, 16, 12], [0, 0, 1]], [[16, 0, 16], [0, 16, 12], [0, 0, 2]],
    [[1e-9, 0, 16], [0, 1e-9, 12], [0, 0, 1]], [[16, 0, 16], [0, 1e9, 12], [0, 0, 1]]])
def test_a_matrix_that_is_no_camera_of_these_images_is_refused(matrix, tmp_path):
    """A recording is refused if its camera matrix does not fit its images.

    The matrices are for another image size, are transposed, or have wrong values such as 0. An
    earlier version accepted these matrices, and the map was wrong.
    """
    recorded(tmp_path, 'tum')
    np.savetxt(tmp_path / 'camera-intrinsics.txt', matrix)
    with pytest.raises(DataError, match='camera-intrinsics.txt does not fit the 32 x 24 pixels'):
        read('tum', tmp_path)


def test_a_mask_is_no_depth_image(tmp_path):
    recorded(tmp_path, 'tum')
    Image.new('1', SIZE, 1).save(depth_file(tmp_path, 'tum', 1))
    with pytest.raises(DataError, match='1.png is not a depth image'):
        read('tum', tmp_path)


def test_a_recording_that_shows_too_much_is_named(tmp_path):
    """The error names a recording that covers too much space.

    For example, the poses of this recording may be in millimetres.
    """
    recorded(tmp_path, 'tum')
    (tmp_path / 'groundtruth.txt').write_text(
        '\n'.join(f'{n}.005 {n * 1e5} 0 0 0 0 0 1' for n in range(COUNT)))
    with pytest.raises(TaskError, match=f'bounds of what {tmp_path} shows are'):
        Crimp(frames=f'tum:{tmp_path}').model()
