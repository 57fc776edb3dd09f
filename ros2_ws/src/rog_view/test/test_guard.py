"""Pages of other sites in the same browser cannot access the page of `rog view`."""

import asyncio
import socket

import pytest

serve = pytest.importorskip('rog_view.serve')


def asked(kind='http', **headers):
    """Return the messages with which a guarded application answers a request."""
    sent = []

    async def app(scope, receive, send):
        await send({'type': 'http.response.start', 'status': 200, 'headers': []})

    async def send(message):
        sent.append(message)

    scope = {'type': kind, 'method': 'GET', 'path': '/', 'query_string': b'',
             'headers': [(name.encode(), value.encode()) for name, value in headers.items()]}
    asyncio.run(serve.Guard(app)(scope, None, send))
    return sent


@pytest.mark.parametrize('host', ['127.0.0.1:8765', 'localhost:8765', '[::1]:8765', '10.0.0.7',
                                  socket.gethostname(), f'{socket.gethostname().upper()}:80'])
@pytest.mark.parametrize('kind', ['http', 'websocket'])
def test_this_machine_by_its_address_or_name_is_let_in(kind, host):
    assert asked(kind, host=host, origin=f'http://{host}')[0]['status'] == 200


@pytest.mark.parametrize('headers', [
    {}, {'host': ''}, {'host': 'evil.example:8765'}, {'host': '127.0.0.1.evil.example'},
    {'host': 'localhost:8765', 'origin': 'http://evil.example'}, {'host': '[::1'},
    {'host': 'localhost:8765', 'origin': 'null'}, {'host': 'localhost', 'origin': 'http://[::1'}])
def test_another_name_or_another_page_is_not(headers):
    answer = asked(**headers)[0]
    assert answer['status'] == 403
    assert asked('websocket', **headers) == [{'type': 'websocket.close', 'code': 1008}]


def test_the_browser_is_told_to_load_nothing_from_elsewhere():
    headers = dict(asked(host='localhost')[0]['headers'])
    assert b"default-src 'self'" in headers[b'content-security-policy']
    assert b'http' not in headers[b'content-security-policy']
