"""The processes of one run: they run in network namespaces behind emulated links.

The network is that of `rog fleet up --emulate` (`fleet_emulation.network`): a namespace for the
server and for each robot, links that replay their records, and air time that robots share. In a
namespace, programs find an ordinary network interface. Everything in a namespace ends with this
process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from fleet_emulation.forwarder import processes_in
from fleet_emulation.network import INTERFACE, SERVER, EmulatedNetwork, addresses
from fleet_emulation.radio import Conditions
from fleet_env.command import how_it_ended
from fleet_env.durable import write_text
from fleet_env.settings.fleet import FleetConfig
from fleet_env.settings.fleet_file import dump_fleet

ORDERLY = 10.0  # seconds between SIGTERM and the killing of the processes that still run
GONE = 10.0     # seconds within which killed processes must have ended
_STEP = 0.05    # seconds between two checks of the processes


class World:
    """Namespaces, links and processes of a run; a context manager.

    The name of a namespace and of its process is ``server`` or the name of a robot.

    :param fleet: robots and links of the run.
    :param out: directory of the run; the processes write logs to its folder ``logs``.
    :raises NetworkError: at the start of the context, if the user is not root or the kernel
        lacks a feature.
    """

    def __init__(self, fleet: FleetConfig, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        write_text(out / 'fleet.yaml', dump_fleet(fleet))
        self.out, self.network = out, EmulatedNetwork(fleet, out)
        self.names = [SERVER, *self.network.robots]
        self.address = addresses(self.network.robots)[SERVER]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.down: set[str] = set()  # names whose processes were killed and not started again
        self._inodes: dict[str, int] = {}

    def __enter__(self) -> World:
        self.network.__enter__()
        for name in self.names:
            with self.network.inside(name):
                self._inodes[name] = os.stat('/proc/thread-self/ns/net').st_ino
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.network.close()
        for process in self.processes.values():
            process.wait(GONE)

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str], place: Path
              ) -> None:
        """Start a process in the namespace of ``server`` or of a robot, in the folder ``place``."""
        log = self.log(name)
        for folder in (log.parent, place):
            folder.mkdir(parents=True, exist_ok=True)
        with log.open('ab') as file, self.network.inside(name):
            self.processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                start_new_session=True, env=dict(environment), cwd=place)
        self.down.discard(name)

    def kill(self, name: str) -> None:
        """Kill all processes in a namespace at once, as when the power fails.

        :raises TimeoutError: some processes have not ended within `GONE` seconds.
        """
        self.down.add(name)
        until = time.monotonic() + GONE
        while found := processes_in({self._inodes[name]}):
            for number in found:
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            self.ended(name)
            if time.monotonic() > until:
                raise TimeoutError(f'processes {found} of {name} must be gone {GONE:g} s after '
                                   'SIGKILL, but are not')
            time.sleep(_STEP)

    def ended(self, name: str) -> int | None:
        """Return the exit code of the process with this name; None if the process runs."""
        return self.processes[name].poll()

    def set_link(self, robot: str, linked: bool) -> None:
        """Cut or restore the link of a robot; its delay stays as in the fleet file."""
        delay = self.network.fleet.robot(robot).link.latency
        self.network.change(robot, Conditions(linked=linked, delay=delay))

    def begin(self) -> None:
        """Let the links follow their records from now on; before this call the links are fast."""
        self.network.begin()

    def bytes(self) -> dict[str, tuple[int, int]]:
        """Return a dict: name of a namespace -> (bytes received, bytes sent) so far."""
        found = {}
        for name in self.names:
            with self.network.inside(name):
                found[name] = interface_bytes(Path('/proc/thread-self/net/dev').read_text())
        return found

    def end(self) -> None:
        """Ask all processes to end; after `ORDERLY` seconds, kill those that still run."""
        for name, process in self.processes.items():
            if self.ended(name) is None:
                process.send_signal(signal.SIGTERM)
        until = time.monotonic() + ORDERLY
        while any(self.ended(name) is None for name in self.processes) \
                and time.monotonic() < until:
            time.sleep(_STEP)
        for name in self.names:
            self.kill(name)

    def log(self, name: str) -> Path:
        """Return the path of the log with the output of the process with this name."""
        return self.out / 'logs' / f'{name}.log'

    def how(self, name: str) -> str:
        """Return how the process with this name ended, with the last line of its log."""
        code = self.ended(name)
        if code is None:
            return 'runs'
        lines = [line for line in self.log(name).read_text(errors='replace').splitlines()
                 if line.strip()]
        return f'{name} {how_it_ended(code)}: {lines[-1] if lines else "it printed nothing"}'


def interface_bytes(text: str, interface: str = INTERFACE) -> tuple[int, int]:
    """Return the bytes that an interface has received and sent.

    :param text: content of /proc/net/dev.
    :raises ValueError: there is no such interface.
    """
    for line in text.splitlines():
        name, colon, counters = line.partition(':')
        if colon and name.strip() == interface:
            fields = counters.split()
            return int(fields[0]), int(fields[8])
    raise ValueError(f'/proc/net/dev must have a line of {interface}, got {text!r}')
