"""`ros2 launch rog_bringup lopinfer.launch.py` with real processes."""

import numpy as np
import pytest
from launched import Launched, check_clean_end, check_described, check_refused

FILE = 'lopinfer.launch.py'


@pytest.mark.long
def test_two_robots_answer_images_with_the_server_and_end_cleanly(tmp_path):
    from lopinfer_msgs.msg import Result
    from lopinfer_node.qos import IMAGE, RESULT
    from sensor_msgs.msg import Image
    image = Image(height=32, width=40, encoding='rgb8', step=120)
    image.data = np.zeros(3840, np.uint8).tobytes()
    offloaded = set()
    with Launched(tmp_path, FILE, 'robots:=robot1,robot2', 'model:=tiny_net:make', 'height:=32',
                  'width:=40', 'method:=server-only', f'directory:={tmp_path}') as launch:

        def watch(robot):
            images = launch.node.create_publisher(Image, f'/{robot}/image', IMAGE)
            launch.node.create_timer(0.1, lambda: images.publish(image))
            launch.node.create_subscription(
                Result, f'/{robot}/lopinfer/result',
                lambda result: offloaded.add(robot) if result.offloaded else None, RESULT)

        for robot in ('robot1', 'robot2'):
            watch(robot)
        launch.spin_until(lambda: len(offloaded) == 2)
    assert offloaded == {'robot1', 'robot2'}, launch.output
    check_clean_end(launch)


@pytest.mark.parametrize('argument, message', [
    ('only:=robot9', 'only:=robot9 names robot9; there are server, robot1'),
    ('height:=tall', "height must be a whole number, not 'tall'"),
    ('interface:=nowhere', "network.interface is 'nowhere'"),
])
def test_a_bad_argument_ends_it_before_anything_is_started(tmp_path, argument, message):
    check_refused(Launched(tmp_path, FILE, argument), message)


def test_every_argument_is_described(tmp_path):
    check_described(tmp_path, FILE, 'robots', 'model', 'server_threads', 'threads', 'link.rate',
                    'server', 'directory')
