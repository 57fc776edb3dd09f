"""Start a fleet and record its statuses into a rosbag2 recording.

    ros2 launch examples/fleet_with_bag.launch.py fleet:=examples/my_fleet.yaml bag:=statuses
    rog plot statuses                                   # afterwards: the figures of the run
"""

from launch.actions import DeclareLaunchArgument, ExecuteProcess, IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.substitutions import FindPackageShare

from launch import LaunchDescription


def generate_launch_description():
    """Return a fleet on this machine, and `ros2 bag record` beside it."""
    fleet = IncludeLaunchDescription(
        PythonLaunchDescriptionSource(PathJoinSubstitution(
            [FindPackageShare('rog_bringup'), 'outdoor.launch.py'])),
        launch_arguments={'fleet': LaunchConfiguration('fleet')}.items())
    # All that is said of the training; not the rows themselves, which are most of the traffic.
    bag = ExecuteProcess(
        cmd=['ros2', 'bag', 'record', '--output', LaunchConfiguration('bag'),
             '--regex', '.*(fleet|training)_status'], output='screen')
    return LaunchDescription([
        DeclareLaunchArgument('fleet', default_value='outdoor', description='fleet file or name'),
        DeclareLaunchArgument('bag', default_value='statuses', description='folder to make'),
        fleet, bag])
