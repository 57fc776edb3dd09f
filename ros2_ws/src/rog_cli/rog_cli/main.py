"""The `rog` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from fleet_env.errors import RecordError, SettingError, TraceError
from rog_core.errors import RogError
from rog_tasks.errors import TaskError

from . import calibrate, compare, fleet, plot, sim, status, study, trace


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; errors of the user are one line and exit code 2."""
    parser = argparse.ArgumentParser(
        prog='rog', description='Train one model on a team of robots over bad Wi-Fi.')
    verbs = parser.add_subparsers(dest='verb', required=True, metavar='VERB')
    for module in (fleet, status, sim, compare, study, plot, trace, calibrate):
        module.add_to(verbs)
    options = parser.parse_args(arguments)
    try:
        return options.run(options)
    except (SettingError, TraceError, RecordError, TaskError, RogError,
            OSError) as error:  # of a file or directory that the user named
        print(f'rog: {error}', file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == '__main__':
    sys.exit(main())
