#!/usr/bin/env bash
# Everything that the images install beside their base. One place: laptop.Dockerfile, jetson.Dockerfile,
# the development container and docs/start/install.md use it. Run from the repository's root, as root.
#
#   docker/install.sh system            packages of the distribution
#   docker/install.sh python [PIP...]   /opt/rog, an environment that sees ROS 2's Python; PIP: options
#   docker/install.sh build             the packages, with colcon, on the ROS 2 of the base image
set -euo pipefail

ROS=/opt/ros/${ROS_DISTRO:?the base image must set ROS_DISTRO}
VENV=/opt/rog

system() {
    apt-get update
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        python3-venv python3-pip git make g++ iproute2 iw \
        "ros-$ROS_DISTRO-rmw-fastrtps-cpp" "ros-$ROS_DISTRO-rmw-cyclonedds-cpp" "ros-$ROS_DISTRO-diagnostic-aggregator"
    rm -rf /var/lib/apt/lists/*
}

python() {
    python3 -m venv --system-site-packages "$VENV"
    "$VENV/bin/pip" install --no-cache-dir -c constraints.txt "$@" -U pip -r requirements-build.txt
    # On a Jetson torch is there already, NVIDIA's.
    "$VENV/bin/python" -c 'import torch' 2> /dev/null \
        || "$VENV/bin/pip" install --no-cache-dir -c constraints.txt "$@" torch torchvision
    grep -Ev '^(torchvision|timm|ortools)$' requirements.txt > /tmp/requirements.txt
    "$VENV/bin/pip" install --no-cache-dir -c constraints.txt "$@" -r /tmp/requirements.txt
    rm /tmp/requirements.txt
}

build() {
    # shellcheck disable=SC1091
    source "$VENV/bin/activate"
    set +u
    # shellcheck disable=SC1091
    source "$ROS/setup.bash"
    set -u
    colcon build --base-paths ros2_ws/src launch --build-base /tmp/build --install-base /opt/rog_ws
    rm -rf /tmp/build log
}

"$@"
