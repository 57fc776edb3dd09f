# ROG on a Jetson: ROS 2 Jazzy on NVIDIA's PyTorch, on JetPack 6 or 7.
#   docker build -f docker/jetson.Dockerfile -t rog-jetson .
#   docker run --rm -it --runtime nvidia --network host rog-jetson rog doctor
# BASE must hold /opt/ros/jazzy and a PyTorch for the GPU of this JetPack; the project jetson-containers makes such
# images (`jetson-containers build --name=ros-torch ros:jazzy-ros-base pytorch`).
# Neither image nor board was there where this was written. docker/install.sh was not run either; its
# lines are those of docs/start/install.md, Beside ROS 2.
ARG BASE=ros-torch
FROM ${BASE}

ENV ROS_DISTRO=jazzy
WORKDIR /rog
COPY docker/install.sh docker/
RUN docker/install.sh system

COPY constraints.txt requirements*.txt ./
# jetson-stats measures the power; its service runs on the board itself, and /run/jtop.sock is given to the container.
RUN docker/install.sh python && /opt/rog/bin/pip install --no-cache-dir jetson-stats

COPY . .
RUN docker/install.sh build

ENTRYPOINT ["docker/entry.sh"]
CMD ["rog", "doctor"]
