"""`ros2 run rog_ps parameter_server`: the fleet's parameter server."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fleet_ros.ending import Interruption, importing

with importing():
    from fleet_link.key import read_key
    from fleet_ros.exposure import key_file, look_before
    from fleet_ros.process import fail, run, spin_until
    from rclpy.node import Node
    from rog_ros.parameters import SERVER
    from rog_ros.servers import Others
    from rog_ros.signature import Signature

    from .directory import check_directory, run_in
    from .duplicate_server_check import DuplicateServerCheck


def main(args: Sequence[str] | None = None) -> int:
    """Run the node until the run is over or is stopped; return 0 if it ended without error."""
    return run(_build, _serve, args, ('rog_core', 'rog_tasks', 'rog_ros', 'rog_ps'),
               lambda given: look_before('parameter_server', f'/{SERVER}', given),
               'rog_ros.parameters:ServerSettings')


def _build() -> Any:
    # Listen for other servers while the imports run: DDS needs about as long to find a server
    # as the imports take.
    check = DuplicateServerCheck(_look_at_settings())
    import torch
    from rog_core.warm_up import warm_up

    from .node import ParameterServerNode

    check.close()
    torch.set_num_threads(1)
    node = ParameterServerNode()
    # compile now: during a later compilation, waiting robots would consider the server dead
    warm_up()
    return node


def _look_at_settings() -> Others:
    """Check the out directory, its checkpoint and the key.

    Returns the `Others` of this server, which judges the statuses of other servers. A fault raises
    an error here, before the imports, which take seconds.
    """
    node = Node('parameter_server', namespace=f'/{SERVER}', start_parameter_services=False,
                enable_rosout=False)
    try:
        out = node.declare_parameter('out', '').value
        resume = node.declare_parameter('resume', False).value
        key = key_file(node.declare_parameter('security.key', '').value)
    finally:
        node.destroy_node()
    if out:
        check_directory(Path(out), resume)
    return Others(Signature(read_key(key)) if key else None,
                  run_in(Path(out)) if out and resume else 0)


def _serve(node: Any, interruption: Interruption) -> int:
    spin_until(node, lambda: node.done, interruption, node.interrupt)
    node.finish()  # needed if the user ended the node before the robots were ready
    node.say_last()
    return fail(node.error) if node.error else 0


if __name__ == '__main__':
    sys.exit(main())
