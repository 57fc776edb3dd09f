"""Train the outdoor fleet; `ros2 launch rog_bringup outdoor.launch.py -s` lists the arguments."""

from rog_bringup.fleet_launch import fleet_launch


def generate_launch_description():
    return fleet_launch('outdoor')
