# ROG on a laptop or a server: ROS 2 Jazzy and PyTorch.
#   docker build -f docker/laptop.Dockerfile -t rog-laptop .
#   docker build -f docker/laptop.Dockerfile -t rog-laptop --build-arg PIP_EXTRA_INDEX_URL= .   # with CUDA; run it with --gpus all
# The base image could not be pulled where this was written. docker/install.sh was not run either; its lines
# are those of docs/start/install.md, Beside ROS 2.
ARG BASE=ros:jazzy-ros-base
FROM ${BASE}

WORKDIR /rog
COPY docker/install.sh docker/
RUN docker/install.sh system

# Before the code, so that a change of it does not install PyTorch again.
COPY constraints.txt requirements*.txt ./
ARG PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
RUN docker/install.sh python

COPY . .
RUN docker/install.sh build

ENTRYPOINT ["docker/entry.sh"]
CMD ["rog", "fleet", "up", "outdoor", "--plain"]
