"""Where the rclpy of ROS 2 and the one of this distribution meet, the errors say what to do."""

from importlib.util import find_spec


def need_our_rclpy(package: str) -> None:
    """Raise ImportError if rclpy is that of ROS 2, for which rosidl makes other message classes."""
    if find_spec("rclpy._types") is None:
        raise ImportError(
            f"ROS 2 is sourced, but {package} was found at the place for machines without ROS 2. "
            "Build it (colcon build) and source install/setup.bash, or use a shell in which no "
            "ROS 2 is sourced"
        )


def need_no_other_rclpy(folder: str) -> None:
    """Raise ImportError if pip has put our rclpy into the folder that holds the one of ROS 2."""
    if find_spec("rclpy._rclpy_pybind11") is not None:
        raise ImportError(
            f"the rclpy of ROS 2 and the one for machines without ROS 2 are mixed in {folder}. "
            "Uninstall rog-suite (or rog-embedded) there and install rclpy again; beside ROS 2 "
            "the packages are built with colcon"
        )
