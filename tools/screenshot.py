"""Writes docs/images/view.png and view.gif: the page of `rog view` while the outdoor demo trains.

The program needs a browser: run `pip install PyQt6-WebEngine` in this Python, or in the
Python that QT_PYTHON names.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / 'docs' / 'images'
SIZE = 1400, 1080        # pixels of the browser window, which shows the page without scrolling
SECONDS = 45             # seconds of the run in view.png; long enough that the curves have a shape
EVERY, LAST = 4, 56  # seconds of the run between two frames of view.gif; second of the last frame
SCALE = 0.6              # factor for the size of the frames in view.gif
LIMIT = 300              # maximum seconds for all frames together, and for the end of a process
QT = os.environ.get('QT_PYTHON', sys.executable)


@contextlib.contextmanager
def started(*command, **options):
    """Start a process; send it SIGINT when the context ends."""
    process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE,
                               stdin=subprocess.PIPE, start_new_session=True, **options)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=LIMIT)


def rog(*words):
    return started(sys.executable, '-m', 'rog_cli.main', *words)


def write(frames, path):
    """Write frames as an animation. A frame is (seconds since the start of the run, picture)."""
    small = [frame.resize([int(SCALE * side) for side in frame.size], Image.Resampling.LANCZOS)
             .quantize(64, dither=Image.Dither.NONE) for _, frame in frames]
    small[0].save(path, save_all=True, append_images=small[1:], duration=600, loop=0, optimize=True)


def main():
    """Start fleet, page and browser; take and write the pictures."""
    clean = {k: v for k, v in os.environ.items() if k not in ('PYTHONPATH', 'LD_LIBRARY_PATH')}
    frames = []
    with tempfile.TemporaryDirectory() as out, \
            rog('fleet', 'up', 'outdoor', '--plain', '--out', f'{out}/run'), \
            rog('view', '--port', '0') as view, \
            started(QT, str(ROOT / 'testing/qt_page.py'), view.stdout.readline().split()[0],
                    env=clean, stderr=subprocess.DEVNULL) as page:
        def ask(line):
            page.stdin.write(line + '\n')
            page.stdin.flush()
            return json.loads(page.stdout.readline())

        ask('resize {} {}'.format(*SIZE))
        end, at = time.monotonic() + LIMIT, 0
        while at < LAST and time.monotonic() < end:
            text = ask('return (document.getElementById("headline") || {}).innerText') or ''
            found = re.search(r' (\d+) s,', text)
            if found and int(found[1]) >= at:
                ask(f'picture {out}/frame.png')
                frames.append((at, Image.open(f'{out}/frame.png').convert('RGB')))
                at += EVERY
            time.sleep(0.2)
    picture = min(frames, key=lambda frame: abs(frame[0] - SECONDS))[1]
    picture.quantize(128, dither=Image.Dither.NONE).save(IMAGES / 'view.png', optimize=True)
    write(frames, IMAGES / 'view.gif')
    for name in ('view.png', 'view.gif'):
        print(f'{IMAGES / name}: {(IMAGES / name).stat().st_size / 1000:.0f} kB')


if __name__ == '__main__':
    main()
