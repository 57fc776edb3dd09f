"""Train the indoor fleet; `ros2 launch rog_bringup indoor.launch.py -s` lists the arguments."""

from rog_bringup.fleet_launch import fleet_launch


def generate_launch_description():
    return fleet_launch('indoor')
