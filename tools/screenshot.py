"""Writes docs/images/view.png: the page of `rog view` during the training of the outdoor demo.

Like the tests of the page, this program needs chromium and chromium-driver.
"""

import contextlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from selenium import webdriver
from selenium.webdriver.support.wait import WebDriverWait

PICTURE = Path(__file__).parent.parent / 'docs' / 'images' / 'view.png'
SIZE = 1400, 1180     # width and height of the picture in pixels; the page fits without scrolling
SECONDS = 45          # s of the run before the picture is taken, so that the curves have a shape
LIMIT = 300           # s that each wait may take at most


@contextlib.contextmanager
def rog(*words):
    """Run a `rog` command in the context; end it with SIGINT afterwards."""
    process = subprocess.Popen([sys.executable, '-m', 'rog_cli.main', *words], text=True,
                               stdout=subprocess.PIPE, start_new_session=True)
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=LIMIT)


def main():
    """Start fleet, page and browser, and save the picture."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which('chromium')
    for argument in ('--headless=new', '--no-sandbox', '--disable-dev-shm-usage',
                     '--no-proxy-server', '--window-size={},{}'.format(*SIZE),
                     '--hide-scrollbars'):
        options.add_argument(argument)
    service = webdriver.ChromeService(shutil.which('chromedriver'))
    with tempfile.TemporaryDirectory() as out, \
            rog('fleet', 'up', 'outdoor', '--plain', '--out', out), \
            rog('view', '--port', '0') as view, webdriver.Chrome(options, service) as browser:
        browser.get(view.stdout.readline().split()[0])

        def trained(browser):
            at = re.search(r' (\d+) s', browser.find_element('id', 'headline').text)
            rows = browser.find_elements('css selector', '#robots tbody tr')
            return at and int(at[1]) >= SECONDS and len(rows) == 3

        WebDriverWait(browser, LIMIT).until(trained)
        browser.set_window_size(*SIZE)
        taken = Image.open(io.BytesIO(browser.get_screenshot_as_png()))
    taken.convert('RGB').quantize(128, dither=Image.Dither.NONE).save(PICTURE, optimize=True)
    print(f'{PICTURE}: {PICTURE.stat().st_size / 1000:.0f} kB')


if __name__ == '__main__':
    main()
