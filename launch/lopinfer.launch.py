"""Share inferences; `ros2 launch rog_bringup lopinfer.launch.py -s` lists the arguments."""

from lopinfer_node.parameters import ClientSettings, ServerSettings
from rog_bringup.pair_launch import Pair, pair_launch


def generate_launch_description():
    return pair_launch(Pair('lopinfer_node', 'lopinfer_server', 'lopinfer_client',
                            ServerSettings, ClientSettings))
