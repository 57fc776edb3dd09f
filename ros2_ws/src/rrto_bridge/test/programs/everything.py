"""Runs the programs that the command line names, one after the other."""

import runpy
import sys
from pathlib import Path

for name in sys.argv[1:]:
    runpy.run_path(str(Path(__file__).with_name(name + '.py')), run_name='__main__')
