"""The web server of the page: access control and shutdown."""

from __future__ import annotations

import ipaddress
import socket
import warnings
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from fastapi import FastAPI
from fastapi.datastructures import Headers
from fastapi.responses import PlainTextResponse
from fleet_env.errors import SettingError
from fleet_ros.ending import Interruption
from nicegui import ui

from .page import build
from .source import Source

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

LINGER = 1  # s that open connections have when the server ends
PATIENCE = 30  # s that a browser on a bad link, or a machine that is busy, may be silent
# A browser loads nothing for this page from anywhere else, whatever is in it.
POLICY = ("default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; "
          "connect-src 'self' ws: wss:; frame-ancestors 'none'; form-action 'none'")


class Guard:
    """Reject requests from pages of other sites in the same browser.

    Such a page can name this server by a name of its own (DNS rebinding), or open a WebSocket to
    it. So the request must name an address, or this machine, and come from a page of this server.
    """

    def __init__(self, app: Any) -> None:
        self.app = app
        name = socket.gethostname().lower()
        self._names = {'localhost', name, f'{name}.local'}

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope['type'] not in ('http', 'websocket'):
            await self.app(scope, receive, send)
        elif self._is_ours(Headers(scope=scope)):
            await self.app(scope, receive, _with_policy(send))
        elif scope['type'] == 'http':
            answer = PlainTextResponse('refused: name this machine by its address or its name', 403)
            await answer(scope, receive, send)
        else:
            await send({'type': 'websocket.close', 'code': 1008})

    def _is_ours(self, headers: Headers) -> bool:
        host, origin = headers.get('host', ''), headers.get('origin')
        if origin is not None and origin.partition('//')[2] != host:
            return False
        try:
            name = urlsplit(f'//{host}').hostname or ''
            return name in self._names or bool(ipaddress.ip_address(name))
        except ValueError:
            return False


def _with_policy(send: Send) -> Send:
    async def sending(message: Any) -> None:
        if message['type'] == 'http.response.start':
            message['headers'] = [*message.get('headers', []),
                                  (b'content-security-policy', POLICY.encode())]
        await send(message)
    return sending


def serve(source: Source, host: str, port: int) -> None:
    """Serve the page of this source until Ctrl+C or SIGTERM.

    :raises SettingError: the server cannot listen at this address.
    """
    try:
        listener = socket.create_server(
            (host, port), family=socket.AF_INET6 if ':' in host else socket.AF_INET)
    except OSError as error:
        raise SettingError(f'cannot listen at {host}, port {port}: {error.strerror}; choose '
                           'others with --host and --port') from error
    app = FastAPI(openapi_url=None)
    app.add_middleware(Guard)
    ui.run_with(app, root=lambda: build(source), title='ROG fleet', tailwind=False,
                show_welcome_message=False, reconnect_timeout=PATIENCE)
    server = uvicorn.Server(uvicorn.Config(app, log_level='warning',
                                           timeout_graceful_shutdown=LINGER))
    # NiceGUI looks at every object there is for its server; some of PyTorch's warn when looked at.
    warnings.filterwarnings('ignore', module='nicegui')
    name = f'[{host}]' if ':' in host else host
    try:
        # Until uvicorn has its own handlers, and when it raises the signal again at the end.
        with listener, Interruption().raised():
            print(f'http://{name}:{listener.getsockname()[1]}   (Ctrl+C ends the page)', flush=True)
            if source.live:
                print('Whoever reaches this page can stop the fleet, save it and change its '
                      'method.', flush=True)
            server.run(sockets=[listener])
    except KeyboardInterrupt:  # the usual end; everything is closed already
        pass
