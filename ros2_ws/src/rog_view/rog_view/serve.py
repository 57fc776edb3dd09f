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

# when the server shuts down: seconds before it closes the connections that are still open
LINGER = 1
PATIENCE = 30  # seconds of silence after which a browser counts as gone
# With this policy the browser loads nothing from other servers, whatever the page contains.
POLICY = ("default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; "
          "connect-src 'self' ws: wss:; frame-ancestors 'none'; form-action 'none'")


class Guard:
    """Rejects requests that pages of other sites send from the user's browser.

    A page of another site can use its own host name for the address of this server (DNS
    rebinding), or open a WebSocket to this server. Therefore the host of a request must be
    an IP address or a name of this machine, and the origin of a request must be a page of
    this server.
    """

    def __init__(self, app: Any) -> None:
        self.app = app
        name = socket.gethostname().lower()
        self._names = {'localhost', name, f'{name}.local'}

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Pass a request to the application, or reject it."""
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
    """Serve the page of ``source`` until Ctrl+C or SIGTERM.

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
    # NiceGUI inspects every object of the process to find its server, and some objects of PyTorch
    # emit a warning when they are inspected.
    warnings.filterwarnings('ignore', module='nicegui')
    name = f'[{host}]' if ':' in host else host

    def stop() -> None:
        server.should_exit = True

    # A signal may come before uvicorn has set its own handlers, and uvicorn raises it again at its
    # end. An exception at these times would leave its event loop half set up.
    Interruption(stop)
    with listener:
        print(f'http://{name}:{listener.getsockname()[1]}   (Ctrl+C ends the page)', flush=True)
        if source.live:
            print('Whoever reaches this page can stop the fleet, save it and change its method.',
                  flush=True)
        server.run(sockets=[listener])
