"""A node that publishes images of a red wall and a blue wall, with their classes.

The images of the two walls alternate. The tests start this node as a process. It publishes ten
images per second on `camera`, and the class of each image on `said`. Both topics are in the
node's namespace.
"""

import sys
from array import array

import rclpy
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import Image
from std_msgs.msg import String

COLOURS = {'blue': (20, 30, 220), 'red': (220, 30, 20)}


def main():
    rclpy.init(args=sys.argv)
    node = rclpy.create_node('camera')
    images = node.create_publisher(Image, 'camera', qos_profile_sensor_data)
    said = node.create_publisher(String, 'said', 10)
    names = []

    def publish():
        names.append(('red', 'blue')[len(names) % 2])
        said.publish(String(data=names[-1]))
        images.publish(Image(encoding='rgb8', width=16, height=12, step=48,
                             data=array('B', COLOURS[names[-1]] * 16 * 12)))

    node.create_timer(0.1, publish)
    rclpy.spin(node)


if __name__ == '__main__':
    main()
