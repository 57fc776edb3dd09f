"""`python -m fleet_env.start MODULE ...` is `python -m MODULE ...`, whose imports take less time.

The garbage collector runs seldom from the start; the module calls `never_collect_what_is_loaded`
when it has loaded what it needs.
"""

import runpy
import sys

from .command import collect_seldom

if __name__ == '__main__':
    collect_seldom()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)
