#!/usr/bin/env bash
# Every command of a container sees the environment, ROS 2 if it is there, and the packages.
set -e
# shellcheck disable=SC1091
source /opt/rog/bin/activate
for file in "/opt/ros/${ROS_DISTRO:-none}/setup.bash" /opt/rog_ws/setup.bash; do
    # shellcheck disable=SC1090
    [ ! -f "$file" ] || source "$file"
done
exec "$@"
