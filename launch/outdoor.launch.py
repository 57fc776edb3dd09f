"""ros2 launch rog_bringup outdoor.launch.py: train the outdoor fleet; --show-args: arguments."""

from rog_bringup.fleet_launch import fleet_launch


def generate_launch_description():
    return fleet_launch('outdoor')
