"""Keys of a team; what is sealed with them is opened by nobody else, and once."""

import os
import stat

import pytest
from fleet_link.errors import KeyFileError, SealError
from fleet_link.key import Key, Signer, derived, new_key, read_key, write_key
from fleet_link.seal import NONCE, TAG, Answerer, Caller, Seal, Session
from hypothesis import given
from hypothesis import strategies as st

FLEET = Key(bytes(range(32)))
ROBOT = FLEET.of('robot1')
SESSION = Session(ROBOT.secret, 11, 22)
OTHERS = [SESSION.to_robot, Session(ROBOT.secret, 11, 23).to_server,
          Session(ROBOT.secret, 12, 22).to_server,
          Session(FLEET.of('robot2').secret, 11, 22).to_server, Seal(ROBOT.secret),
          Seal(FLEET.secret)]


# -- keys


def test_a_key_file_can_be_read_by_its_owner_only_and_comes_back(tmp_path):
    path, key = tmp_path / 'fleet.key', new_key()
    write_key(path, key)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert read_key(path) == key and new_key() != key
    write_key(tmp_path / 'robot1.key', key.of('robot1'))
    assert read_key(tmp_path / 'robot1.key') == key.of('robot1')
    with pytest.raises(KeyFileError, match='never replaced'):
        write_key(path, new_key())
    path.chmod(0o640)
    with pytest.raises(KeyFileError, match='can be read by others .*chmod 600'):
        read_key(path)


@pytest.mark.parametrize('text', ['', 'rog-key-1', 'rog-key-1 - 00', 'rog-key-2 - ' + '00' * 32,
                                  'rog-key-1 - ' + 'zz' * 32, 'rog-key-1 - ' + '00' * 32 + ' more',
                                  'rog-key-1 - ' + '00' * 32 + ' ' + '00' * 32,
                                  'rog-key-1 robot1 ' + '00' * 32,
                                  'rog-key-1 robot1 ' + '00' * 32 + ' 00'])
def test_what_is_no_key_is_refused(tmp_path, text):
    path = tmp_path / 'fleet.key'
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(KeyFileError, match='is not a key of rog key'):
        read_key(path)
    with pytest.raises(KeyFileError, match='cannot be read'):
        read_key(tmp_path / 'none')


def test_a_robots_key_is_good_for_this_robot_and_nothing_else():
    assert FLEET.of('robot1') == ROBOT != FLEET.of('robot2')
    assert ROBOT.of('robot1') == ROBOT
    with pytest.raises(KeyFileError, match="the key of 'robot1', not of 'robot2'"):
        ROBOT.of('robot2')
    with pytest.raises(KeyFileError, match="needs the fleet's own"):
        ROBOT.control()


def test_keys_for_different_purposes_differ():
    keys = {derived(FLEET.secret, *parts) for parts in (
        (), ('a',), ('b',), ('a', 'b'), ('ab',), (1,), (1, 2), (2, 1), ('a', 1), ('robot', 'ask'))}
    assert len(keys) == 10


def test_only_the_servers_key_signs_and_every_robot_can_check():
    signature = Signer(FLEET).sign(b'status')
    for key in (FLEET, ROBOT, FLEET.of('robot2')):
        assert Signer(key).proves(signature, b'status')
        assert not Signer(key).proves(signature, b'other')
    assert not Signer(new_key()).proves(signature, b'status')
    with pytest.raises(AssertionError, match='cannot sign'):
        Signer(ROBOT).sign(b'status')
    for wrong in (b'', signature[:-1], bytes(64)):
        assert not Signer(ROBOT).proves(wrong, b'status')


# -- seals


@given(st.binary(max_size=40), st.binary(max_size=40), st.binary(min_size=NONCE, max_size=NONCE))
def test_what_is_encrypted_is_opened_only_as_it_was_and_by_its_peer(content, header, nonce):
    own = SESSION.to_server
    sealed = own.encrypted(nonce, content, header)
    assert len(sealed) == len(content) + TAG and (len(content) < 4 or content not in sealed)
    assert own.decrypted(nonce, sealed, header) == content
    changed = bytearray(sealed)
    changed[0] ^= 1
    for key, its_nonce, text, its_header in [
            *((other, nonce, sealed, header) for other in OTHERS),
            (own, bytes([nonce[0] ^ 1]) + nonce[1:], sealed, header),
            (own, nonce, sealed, header + b'x'), (own, nonce, sealed[:-1], header),
            (own, nonce, bytes(changed), header), (own, nonce, b'', header)]:
        with pytest.raises(SealError):
            key.decrypted(its_nonce, text, its_header)


@given(st.binary(max_size=40))
def test_a_tag_proves_its_content_and_its_sender(content):
    tag = SESSION.to_server.tag(content)
    SESSION.to_server.check(tag, content)
    for key, its_tag, text in [*((other, tag, content) for other in OTHERS),
                               (SESSION.to_server, tag, content + b'x'),
                               (SESSION.to_server, tag[:-1], content)]:
        with pytest.raises(SealError, match='not sealed with our key'):
            key.check(its_tag, text)
    with pytest.raises(SealError, match='it is not sealed, but this side has a key'):
        SESSION.to_server.check(b'', content)


def test_everything_is_taken_once_also_out_of_order():
    says, hears = (Session(ROBOT.secret, 11, 22).to_server for _ in range(2))
    tags = [says.tag(b'same') for _ in range(5)]
    for k in (0, 3, 1, 4):
        hears.check(tags[k], b'same')
        hears.take_once(k)
    for k in (0, 1, 3, 4):
        with pytest.raises(SealError, match='repeated'):
            hears.check(tags[k], b'same')
        with pytest.raises(SealError, match='repeated'):
            hears.take_once(k)
    hears.check(tags[2], b'same')
    hears.take_once(2)


def test_who_speaks_for_a_dead_process_is_heard_after_all_that_it_has_said():
    session, hears = Session(ROBOT.secret, 11, 22), Session(ROBOT.secret, 11, 22).to_robot
    for _ in range(300):
        hears.check(session.to_robot.tag(b'reply'), b'reply')
    hears.check(session.last_words().tag(b'it ended'), b'it ended')


def test_what_is_sealed_does_not_change_by_itself():
    """Other versions must compute the same bytes."""
    own = Session(ROBOT.secret, 11, 22).to_server
    assert own.tag(b'content').hex() == '00000000f4b36afe5d81150fbe42834f'
    assert own.encrypted(bytes(NONCE), b'content', b'header').hex() == (
        '23a6986b688dd1b8bce5dbc6a9596cc05c94ad139a0030')
    assert Signer(FLEET).sign(b'status').hex()[:32] == 'a87db134056721adfa925f1468ed32f8'


# -- calls


def pair(robot='robot1', life=7, server=5):
    """Return a caller, and the server that it calls."""
    return (Caller(FLEET.of(robot).secret, robot, life),
            Answerer(FLEET.secret_of, server))


def answered(caller, answerer, request=b'request', response=b'response'):
    """Make a call; return what the server reads, and the caller's response."""
    sealed = caller.call('open', request)
    call = answerer.opened('open', sealed)
    return call, caller.answer('open', sealed, answerer.answer(call, response))


def test_the_first_call_learns_the_process_of_the_server_and_the_second_is_answered():
    caller, answerer = pair()
    call, response = answered(caller, answerer)
    assert (call.request, response, caller.server) == (None, None, 5)
    call, response = answered(caller, answerer)
    assert (call.robot, call.life, call.request, response) == ('robot1', 7, b'request', b'response')
    session = answerer.session(call, 5)
    session.to_robot.check(Session(ROBOT.secret, 7, 5).to_robot.tag(b'x'), b'x')
    # a restarted server
    call, response = answered(caller, Answerer(FLEET.secret_of, 6))
    assert (call.request, response, caller.server) == (None, None, 6)


def test_a_call_is_taken_once_and_by_one_process_of_the_server():
    caller, answerer = pair()
    answered(caller, answerer)
    calls = [caller.call('open', b'%d' % k) for k in range(5)]
    for k in (0, 3, 1):
        assert answerer.opened('open', calls[k]).request == b'%d' % k
    for k in (0, 1, 3):
        with pytest.raises(SealError, match='repeated'):
            answerer.opened('open', calls[k])
    assert answerer.opened('open', calls[2]).request == b'2', 'its twin was not taken yet'
    assert Answerer(FLEET.secret_of, 6).opened('open', calls[4]).request is None


def test_calls_that_a_robot_has_not_sealed_are_refused():
    caller, answerer = pair()
    answered(caller, answerer)
    good = caller.call('open', b'request')
    name = good[:7]
    forged = [b'', b'\xff', b'\xff' * 300, b'\0', good[:-1], good + b'x', name, name[:1] + b'robot2'
              + good[7:], bytes([good[0]]) + b'\xff' * 6 + good[7:],
              Caller(new_key().of('robot1').secret, 'robot1', 7).call('open', b'request'),
              Caller(FLEET.of('robot2').secret, 'robot1', 7).call('open', b'request')]
    for call in forged:
        with pytest.raises(SealError):
            answerer.opened('open', call)
    with pytest.raises(SealError):
        answerer.opened('upload', good)
    assert answerer.opened('open', good).request == b'request', 'the twin'


def test_an_answer_is_the_servers_and_of_this_call():
    caller, answerer = pair()
    answered(caller, answerer)
    first, second = (caller.call('open', b'request') for _ in range(2))
    answers = [answerer.answer(answerer.opened('open', call), b'response')
               for call in (first, second)]
    stranger = Answerer(new_key().secret_of, 5)
    theirs = Caller(stranger._secret_of('robot1'), 'robot1', 7)
    answered(theirs, stranger)
    forged = stranger.answer(stranger.opened('open', theirs.call('open', b'')), b'response')
    for wrong in (answers[1], forged, b'', answers[0][:-1], first, bytes(60)):
        with pytest.raises(SealError):
            caller.answer('open', first, wrong)
    assert caller.answer('open', first, answers[0]) == b'response'
    assert caller.server == 5


def test_the_same_call_never_looks_the_same_and_hides_its_content():
    caller, _ = pair()
    calls = [caller.call('open', b'a secret request') for _ in range(2)]
    assert calls[0] != calls[1] and all(b'secret' not in call for call in calls)
