#!/usr/bin/env bash
# Everything that the images install beside their base. One place: laptop.Dockerfile, jetson.Dockerfile,
# the development container and docs/install.md use it. Run from the repository's root, as root.
#
#   docker/install.sh system            packages of the distribution
#   docker/install.sh python [PIP...]   /opt/rog, an environment that sees ROS 2's Python; PIP: options
#   docker/install.sh build             the packages, with colcon where ROS 2 is, else with pip
set -euo pipefail

ROS=/opt/ros/${ROS_DISTRO:-none}
VENV=/opt/rog

system() {
    local packages=(python3-venv python3-pip git make iproute2 iw)
    [ ! -d "$ROS" ] || packages+=("ros-$ROS_DISTRO-rmw-cyclonedds-cpp" "ros-$ROS_DISTRO-diagnostic-aggregator")
    apt-get update
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${packages[@]}"
    rm -rf /var/lib/apt/lists/*
}

python() {
    python3 -m venv --system-site-packages "$VENV"
    "$VENV/bin/pip" install --no-cache-dir -c constraints.txt "$@" -U pip setuptools wheel
    # On a Jetson torch is there already, NVIDIA's.
    "$VENV/bin/python" -c 'import torch' 2> /dev/null \
        || "$VENV/bin/pip" install --no-cache-dir -c constraints.txt "$@" torch torchvision
    # With ROS 2 the nodes use its rclpy, and cyclonedds is not needed.
    local without='^(torchvision|timm|ortools)$'
    [ ! -d "$ROS" ] || without='^(torchvision|timm|ortools|cyclonedds)$'
    grep -Ev "$without" requirements.txt > /tmp/requirements.txt
    "$VENV/bin/pip" install --no-cache-dir -c constraints.txt "$@" -r /tmp/requirements.txt
    rm /tmp/requirements.txt
}

build() {
    # shellcheck disable=SC1091
    source "$VENV/bin/activate"
    if [ -d "$ROS" ]; then
        set +u
        # shellcheck disable=SC1091
        source "$ROS/setup.bash"
        set -u
        colcon build --base-paths ros2_ws/src launch --build-base /tmp/build --install-base /opt/rog_ws
        rm -rf /tmp/build log
    else
        pip install --no-cache-dir --no-deps .
    fi
}

"$@"
