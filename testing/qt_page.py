"""A browser for one page: `python qt_page.py URL`; each line of stdin is JavaScript to evaluate.

For each line, the program prints the result as a line of JSON; null if the evaluation fails.
`resize WIDTH HEIGHT` sets the size of the window in pixels, and `picture FILE` writes a picture of
the window. The browser is Chromium in Qt, which PyPI has.
"""

import json
import os
import sys
import threading

os.environ['QT_QPA_PLATFORM'] = 'offscreen'
os.environ['QTWEBENGINE_CHROMIUM_FLAGS'] = '--disable-gpu --no-proxy-server --no-sandbox'

from PyQt6.QtCore import QObject, QUrl, pyqtSignal  # noqa: E402
from PyQt6.QtWebEngineWidgets import QWebEngineView  # noqa: E402
from PyQt6.QtWidgets import QApplication  # noqa: E402


class Lines(QObject):
    """Reads stdin in a thread of its own."""

    came = pyqtSignal(str)
    ended = pyqtSignal()

    def read(self):
        """Emit a signal for every line, and one at the end of stdin."""
        for line in sys.stdin:
            self.came.emit(line.rstrip('\n'))
        self.ended.emit()


def answer(value=None):
    """Print a value as a line of JSON."""
    print(json.dumps(value), flush=True)


def main():
    """Show the page until stdin ends."""
    app = QApplication(sys.argv)
    view = QWebEngineView()
    view.resize(1400, 1300)
    view.show()
    view.load(QUrl(sys.argv[1]))

    def do(line):
        verb, _, rest = line.partition(' ')
        if verb == 'resize':
            view.resize(*map(int, rest.split()))
            answer()
        elif verb == 'picture':
            answer(view.grab().save(rest))
        else:
            view.page().runJavaScript(
                f'(() => {{ try {{ return JSON.stringify((() => {{ {line} }})()) }} '
                'catch (error) { return null } })()',
                lambda text: answer(json.loads(text or 'null')))

    lines = Lines()
    lines.came.connect(do)
    lines.ended.connect(app.quit)
    reader = threading.Thread(target=lines.read, daemon=True)

    def loaded(good):  # read stdin only after the page has loaded; an earlier answer may get lost
        if reader.ident is None:
            reader.start()

    view.loadFinished.connect(loaded)
    app.exec()
    os._exit(0)  # Chromium takes seconds to end by itself


if __name__ == '__main__':
    main()
