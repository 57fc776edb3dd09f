"""Start a fleet and record its statuses with rosbag2; the name of the bag contains the time.

    ros2 launch examples/fleet_with_bag.launch.py fleet:=examples/my_fleet.yaml
    rog plot rosbag2_*                                  # afterwards: the figures of the run

This launch file accepts all arguments of rog_bringup's outdoor.launch.py.
"""

from importlib.util import find_spec

from launch.actions import ExecuteProcess, IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import PathJoinSubstitution
from launch_ros.substitutions import FindPackageShare

from launch import LaunchDescription


def generate_launch_description():
    """Return the launch description of a fleet on this machine and of `ros2 bag record`."""
    if find_spec('ros2bag') is None:  # do not train a fleet that cannot be recorded
        raise RuntimeError('the command `ros2 bag` is missing, so nothing is started: it needs an '
                           'installed ROS 2 with rosbag2 (apt install ros-$ROS_DISTRO-rosbag2)')
    fleet = IncludeLaunchDescription(PythonLaunchDescriptionSource(
        PathJoinSubstitution([FindPackageShare('rog_bringup'), 'outdoor.launch.py'])))
    # Record all statuses of the training, but not the rows, which are most of the traffic.
    bag = ExecuteProcess(cmd=['ros2', 'bag', 'record', '--regex', '.*(fleet|training)_status'],
                         output='screen')
    # `fleet` comes first: it sets the DDS variables that `bag` needs
    return LaunchDescription([fleet, bag])
