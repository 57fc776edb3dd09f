# One command each; `make help` lists them. Everything is installed in .venv, nothing outside.

PYTHON ?= python3
# ROS 2 comes from the shell's, where one is sourced, else from PyPI: jazzy or kilted.
ROS ?= jazzy
SOURCED := $(if $(AMENT_PREFIX_PATH),$(shell $(PYTHON) tools/ros.py sourced && echo yes))
# The shell may have sourced the environment of another checkout: nothing of it is used.
ifneq ($(if $(SOURCED),,$(AMENT_PREFIX_PATH)),)
unexport AMENT_PREFIX_PATH CMAKE_PREFIX_PATH COLCON_PREFIX_PATH LD_LIBRARY_PATH PYTHONPATH
endif
VENV := .venv$(addprefix -,$(filter-out jazzy,$(ROS)))
# The libraries of a sourced ROS 2 look for those of the workspace in LD_LIBRARY_PATH.
IN = $(if $(SOURCED),. $(abspath $(VENV))/setup.sh &&)
BIN := $(abspath $(VENV))/bin
PACKAGES := ros2_ws/src/fleet_env ros2_ws/src/fleet_link ros2_ws/src/fleet_ros \
            ros2_ws/src/fleet_compute ros2_ws/src/fleet_models ros2_ws/src/rog_core \
            ros2_ws/src/rog_methods_local ros2_ws/src/rog_tasks ros2_ws/src/rog_ros \
            ros2_ws/src/rog_ps ros2_ws/src/rog_worker \
            ros2_ws/src/rog_sim ros2_ws/src/rog_cli ros2_ws/src/rog_view ros2_ws/src/fleet_emulation \
            ros2_ws/src/lopinfer_node ros2_ws/src/fleet_policy ros2_ws/src/rrto_bridge \
            launch studies
# Where make ros2-tools looks for sources, and puts what it fetches.
SOURCES ?= $(VENV)/ros2-sources
FLEET ?= outdoor
SCHEDULES ?= 10000
MINUTES ?= 60
SEED ?= 1

.PHONY: help setup demo test test-all bench lint site wheels reference ros2-tools versions soak chaos clean

help:
	@echo "make setup     install everything into .venv"
	@echo "make demo      train a fleet of three robots on this machine, and watch (FLEET=indoor|outdoor|FILE)"
	@echo "make test      the tests of every package that take seconds; about 5 minutes on two cores"
	@echo "make test-all  build every package with colcon and run all tests"
	@echo "make soak      the property tests with $(SCHEDULES) schedules (SCHEDULES=N), then make chaos"
	@echo "make chaos     $(MINUTES) minutes of a real fleet that is disturbed on purpose; as root (MINUTES=M SEED=N)"
	@echo "make bench     measure, and write docs/results/benchmarks.md"
	@echo "make lint      ruff and mypy, and the documentation as a site"
	@echo "make site      the documentation as a site, in build/site"
	@echo "make wheels    the suite and its messages as wheels, in dist"
	@echo "make ros2-tools  add the commands of ros2, and ros2 launch, to the ROS 2 of PyPI (SOURCES=FOLDER: from there)"
	@echo "make versions  try RRTO and LOPInfer with PyTorch 2.4 to 2.15 as robot and as server; 22 GB, an hour"
	@echo "make reference write the pages of docs/ that are made from code: settings, messages, commands"

setup: $(VENV)/.ready

$(VENV)/.ready: $(wildcard constraints.txt requirements*.txt ros-*.txt) $(addsuffix /setup.py,$(PACKAGES)) \
		$(wildcard ros2_ws/src/*_msgs/*/*.msg ros2_ws/src/*_msgs/*/*.srv)
	@$(PYTHON) tools/needed.py
	@echo 'Installing the suite and all it needs into $(VENV): about 4 minutes on two idle cores (an update: 1), and as'
	@echo 'long as the downloads take: 2.4 GB with PyTorch for the CPU, 6 GB with CUDA. First ROS 2 and tools.'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install -q -c constraints.txt -U pip -r requirements-build.txt
	@$(if $(SOURCED),:,$(BIN)/python tools/ros.py install $(ROS))
	@echo 'Building the messages, while pip installs PyTorch and the rest: the longest part, some two minutes on two idle'
	@echo 'cores, without output. What colcon does stands in $(VENV)/build/colcon.log.'
	@$(BIN)/python tools/ros.py build & build=$$!; \
	$(BIN)/pip install -q --no-warn-conflicts -c constraints.txt torch \
		&& $(BIN)/pip install -q -c constraints.txt -r requirements.txt; \
	code=$$?; wait $$build && exit $$code
	@echo 'Installing the packages of the suite: half a minute.'
	@$(BIN)/pip install -qq --no-build-isolation --no-deps $(addprefix -e ,$(PACKAGES)) 2> $(VENV)/setup.log \
		|| { cat $(VENV)/setup.log; exit 1; }
	@touch $@

demo: setup
	@$(IN) $(BIN)/rog fleet up $(FLEET)

test: setup
	@$(IN) PATH="$(BIN):$$PATH" $(BIN)/python tools/test.py

test-all: setup
	@$(IN) PATH="$(BIN):$$PATH" $(BIN)/python tools/test.py --all

soak: setup
	ROG_SCHEDULES=$(SCHEDULES) $(BIN)/python -m pytest -q --timeout=0 ros2_ws/src/rog_core/test/test_invariants.py
	@if [ $(MINUTES) = 0 ] || [ $$(id -u) != 0 ]; then echo 'not run: make chaos, as root'; else $(MAKE) chaos; fi

chaos: setup
	@$(IN) $(BIN)/rog chaos outdoor --set link.scale=0.25 --minutes $(MINUTES) --seed $(SEED)

bench: setup
	@$(IN) $(BIN)/python tools/bench.py

wheels: setup
	@$(BIN)/python tools/wheels.py dist

versions: setup
	@$(IN) PATH="$(BIN):$$PATH" $(BIN)/python tools/versions.py $(VERSIONS)

reference: setup
	for page in settings messages commands; do $(BIN)/python tools/$$page.py > docs/reference/$$page.md || exit 1; done

# `ros2` and launch are not on PyPI. A ROS 2 that is sourced has them.
ros2-tools: setup
	@$(if $(SOURCED),echo 'not needed: a ROS 2 is sourced',$(BIN)/python tools/ros2_tools.py $(ROS) $(SOURCES))

$(VENV)/.site: docs/requirements.txt $(VENV)/.ready
	$(BIN)/pip install -q -c constraints.txt -r docs/requirements.txt
	@touch $@

# Each warning is an error: a link to a page or a heading that does not exist, a page that no other names.
site: $(VENV)/.site
	@$(IN) $(BIN)/sphinx-build -W --keep-going -q -c docs . build/site
	@echo 'The first page of the site: $(abspath build/site/index.html)'

lint: setup site
	$(BIN)/ruff check .
	$(BIN)/mypy $(wildcard ros2_ws/src/[a-z]*/[a-z]*_[a-z]*/) launch/rog_bringup studies/rog_studies \
		testing/fleet_testing.py

clean:
	rm -rf build install log
