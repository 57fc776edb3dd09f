"""A reader makes exactly the file that was announced, whatever happens on the way."""

import contextlib
import hashlib
import math
from collections import deque

import pytest
import torch
from fleet_env.versions import Version
from fleet_models import wire
from fleet_models.errors import FollowError
from fleet_models.fetch import AHEAD, Fetch
from fleet_models.parts import join, read_index, split
from fleet_models.source import KEPT, Source, parts_of
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save


def content_of(seed, head=0, large=0):
    """Return the file of a model: a body, and a head that differs with ``head``."""
    torch.manual_seed(seed)
    state = {'body.weight': torch.randn(8, 30), 'body.count': torch.tensor(3),
             'empty': torch.zeros(0, 4), 'half': torch.randn(5).half(),
             'large': torch.randn(large)}
    torch.manual_seed(head)
    return save({**state, 'head.weight': torch.randn(300, 7)})


def version(number, content, accuracy=math.nan):
    return Version(number, number - 1, 'run', 'fleet', 'bsp', 10 * number, '2026-11-29', accuracy,
                   'task', 'model', 'server', hashlib.sha256(content).hexdigest())


class Pair:
    """A reader and its server, and what is on the way between them."""

    def __init__(self, refusal=lambda what: '', most=1 << 30):
        self.source, self.fetch = Source(), Fetch(refusal, most)
        self.up, self.down, self.came, self.bytes = deque(), deque(), [], 0
        self.wants = deque()       # questions that wait for the link

    def offer(self, number, content, pinned=False, accuracy=math.nan):
        self.source.offer(parts_of(version(number, content, accuracy), content), pinned)
        self.down.append(self.source.message)

    def ask(self, questions):
        assert sum(isinstance(q, wire.Want) for q in questions) <= AHEAD
        self.up.extend(wire.want(q) for q in questions)

    def step(self):
        """Carry one message to its end; return whether there was one."""
        if self.up:
            what = wire.read(self.up.popleft())
            if isinstance(what, wire.Drop):
                self.down.extend(wire.part(*w[:2], wire.GONE) for w in self.wants)
                self.wants.clear()
            else:
                self.wants.append(what)
        elif self.wants and not self.down:    # an answer when the former one has arrived
            self.down.append(self.source.answer(self.wants.popleft(), 'robot1'))
        elif self.down:
            message = self.down.popleft()
            self.bytes += len(message)
            what = wire.read(message)
            if isinstance(what, wire.Announcement):
                self.ask(self.fetch.on_announced(what))
            else:
                fetched, questions = self.fetch.on_part(what)
                self.ask(questions)
                if fetched is not None:
                    self.came.append(fetched)
        return bool(self.up or self.wants or self.down)

    def run(self, steps=10**6):
        while steps and self.step():
            steps -= 1

    def cut(self):
        """End the session; another one begins, and announces the version again."""
        self.up.clear()
        self.down.clear()
        self.wants.clear()
        self.fetch.on_new_session()
        self.ask(self.fetch.questions())
        if self.source.message:
            self.down.append(self.source.message)


def test_a_version_comes_whole_and_equal():
    pair, content = Pair(), content_of(1, large=200_000)
    pair.offer(1, content)
    pair.run()
    assert [f.content for f in pair.came] == [content]
    assert set(load(pair.came[0].content)) == set(load(content))
    assert pair.bytes < 1.005 * len(content) + 2000


def test_only_the_tensors_that_differ_are_fetched():
    pair = Pair()
    pair.offer(1, content_of(1, large=50_000))
    pair.run()
    before, changed = pair.bytes, content_of(1, head=1, large=50_000)
    pair.offer(2, changed)
    pair.run()
    assert pair.came[-1].content == changed
    assert pair.bytes - before < 300 * 7 * 4 + 2000


def test_a_file_that_the_reader_has_is_used():
    pair = Pair()
    pair.fetch.know(content_of(1, large=50_000))
    pair.fetch.know(b'no file')
    pair.offer(2, content_of(1, head=1, large=50_000))
    pair.run()
    assert len(pair.came) == 1 and pair.bytes < 300 * 7 * 4 + 2000


@given(st.lists(st.sampled_from(['offer', 'pin', 'cut', 'step', 'steps']), max_size=40),
       st.integers(0, 10**6))
def test_whatever_happens_the_newest_comes_last_and_no_half(events, seed):
    pair, contents = Pair(), []
    for k, event in enumerate(events):
        if event in ('offer', 'pin'):
            contents.append(content_of(seed + k % 2, head=k, large=60_000 * (k % 3)))
            pair.offer(len(contents), contents[-1], event == 'pin')
        elif event == 'cut':
            pair.cut()
        else:
            pair.run(1 if event == 'step' else 7)
    pair.run()
    assert all(f.content in contents for f in pair.came)
    numbers = [f.announcement.version.number for f in pair.came]
    assert numbers == sorted(set(numbers))
    assert not contents or pair.came[-1].content == contents[-1]


def test_on_a_slow_link_a_version_is_fetched_to_its_end_but_a_pinned_one_is_next_at_once():
    pair = Pair()
    first, second, third = (content_of(k, large=500_000) for k in (1, 2, 3))
    pair.offer(1, first)
    pair.run(5)
    pair.offer(2, second)
    pair.run(5)
    pair.offer(3, third)
    pair.run()
    assert [f.announcement.version.number for f in pair.came] == [1, 3]
    pair = Pair()
    pair.offer(1, first)
    pair.run(5)
    pair.offer(2, second, pinned=True)
    pair.run()
    assert [f.announcement.version.number for f in pair.came] == [2]


def test_an_outage_costs_only_the_questions_on_the_way():
    pair, content = Pair(), content_of(1, large=500_000)
    pair.offer(1, content)
    for _ in range(200):
        pair.run(3)
        pair.cut()
    pair.run()
    assert pair.came[0].content == content


def test_of_what_a_person_takes_back_no_more_than_a_part_comes():
    pair, chosen = Pair(), content_of(2)
    pair.offer(1, content_of(1, large=10**6))
    while not pair.wants:
        pair.step()
    pair.run(2 * AHEAD + 40)
    before = pair.bytes
    pair.down.clear()
    pair.fetch.on_new_session()
    pair.wants.clear()
    pair.ask(pair.fetch.questions())
    pair.step()
    pair.offer(2, chosen, pinned=True)
    pair.run()
    assert [f.content for f in pair.came] == [chosen]
    assert pair.bytes - before < len(chosen) + wire.PART_BYTES + 100 * AHEAD


def test_a_version_that_is_being_fetched_is_not_forgotten_however_many_follow():
    pair = Pair()
    contents = [content_of(k, large=500_000) for k in range(KEPT + 3)]
    pair.offer(1, contents[0])
    pair.run(60)
    for number, content in enumerate(contents[1:-1], 2):
        pair.offer(number, content)
    pair.run(20)
    pair.cut()
    pair.run()
    assert [f.content for f in pair.came] == [contents[0], contents[-2]]


def test_what_the_server_has_no_more_is_replaced_by_the_newest():
    pair = Pair()
    contents = [content_of(k, large=500_000) for k in range(KEPT + 2)]
    pair.offer(1, contents[0])
    pair.run(60)
    pair.source = Source()      # another process, which has fewer versions
    pair.cut()
    pair.offer(2, contents[1])
    pair.run()
    assert [f.content for f in pair.came] == [contents[1]]


def test_a_version_that_the_server_does_not_know_is_not_asked_for_again_and_again():
    pair, content = Pair(), content_of(1, large=500_000)
    pair.offer(1, content)
    pair.run(5)
    pair.source = Source()     # another run has no version yet
    pair.cut()
    pair.run(100)
    assert not pair.up and not pair.down and pair.fetch.newest is None
    pair.offer(1, content)
    pair.run()
    assert [f.content for f in pair.came] == [content]


def test_a_version_that_is_pinned_after_it_was_fetched_comes_again_without_its_tensors():
    pair, content = Pair(), content_of(1, large=50_000)
    pair.offer(1, content)
    pair.run()
    before = pair.bytes
    for _ in range(2):
        pair.offer(1, content, pinned=True)
        pair.run()
    assert [f.announcement.pinned for f in pair.came] == [False, True]
    assert pair.came[-1].content == content and pair.bytes - before < 4000


def test_a_version_in_use_is_not_fetched():
    pair, content = Pair(), content_of(1)
    pair.fetch.used = version(1, content).digest
    pair.offer(1, content, pinned=True)
    pair.run()
    assert not pair.came and pair.bytes < 1000 and not pair.fetch.refused


def test_a_version_that_is_not_wanted_costs_no_bytes():
    pair = Pair(lambda what: 'too bad' if what.version.number == 2 else '')
    pair.offer(1, content_of(1))
    pair.run()
    before = pair.bytes
    pair.offer(2, content_of(2))
    pair.run()
    assert pair.fetch.refused == 'too bad' and pair.bytes - before < 1000
    pair.offer(3, content_of(3))
    pair.run()
    assert [f.announcement.version.number for f in pair.came] == [1, 3]
    assert not pair.fetch.refused


def test_a_version_that_is_too_large_is_refused():
    pair = Pair(most=1000)
    pair.offer(1, content_of(1))
    pair.run()
    assert not pair.came and 'more than' in pair.fetch.refused


@pytest.mark.parametrize('change', [
    lambda m: m[:40] + b'x' + m[41:],                # another total
    lambda m: m[:-1],                                # too short
    lambda m: m[:-1] + bytes([m[-1] ^ 1]),           # other content
    lambda m: m[:1] + bytes(32) + m[33:],            # of something else
])
def test_a_wrong_answer_is_an_error_and_the_next_session_gets_the_version(change):
    pair, content = Pair(), content_of(1)
    pair.offer(1, content)
    for _ in range(3):
        pair.step()
    pair.down[0] = change(pair.down[0])
    with pytest.raises(FollowError):
        pair.run()
    pair.cut()
    pair.run()
    assert [f.content for f in pair.came] == [content]


@pytest.mark.parametrize('content', [
    b'', b'12345678', (5).to_bytes(8, 'little') + b'{', (1 << 60).to_bytes(8, 'little') + b'{}',
    (2).to_bytes(8, 'little') + b'[]', (2).to_bytes(8, 'little') + b'{}x',
    save({'a': torch.ones(3)})[:-1],
    (60).to_bytes(8, 'little') + b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}'.ljust(60)
    + bytes(8)])
def test_what_is_no_safetensors_file_is_refused(content):
    with pytest.raises(FollowError):
        split(memoryview(content))


@given(st.binary(max_size=200))
def test_no_message_of_a_stranger_does_more_than_raise(data):
    for read in (wire.read, read_index):
        with contextlib.suppress(FollowError):
            read(data)


def test_an_accuracy_of_many_digits_is_no_accuracy():
    source, content = Source(), content_of(1)
    source.offer(parts_of(version(1, content, .5), content))
    with pytest.raises(FollowError, match="'accuracy' must have at most 32 bits"):
        wire.read(source.message.replace(b'"accuracy": 0.5', b'"accuracy": 1' + 400 * b'0'))


def test_parts_of_another_file_do_not_make_the_announced_one():
    content = content_of(1)
    index, tensors = split(memoryview(content))
    parts = dict(zip(index.digests, tensors, strict=True))
    assert join(index, parts, hashlib.sha256(content).hexdigest()) == content
    with pytest.raises(FollowError, match='SHA-256'):
        join(index, parts, '0' * 64)


@pytest.mark.parametrize('wanted', [(0, 0), (0, wire.PART_BYTES + 1), (10**9, 5)])
def test_a_server_refuses_questions_that_no_reader_asks(wanted):
    source, content = Source(), content_of(1)
    source.offer(parts_of(version(1, content), content))
    digest = split(memoryview(content))[0].digests[0]
    with pytest.raises(FollowError):
        source.answer(wire.Want(digest, *wanted), 'robot1')


def test_a_file_that_was_changed_is_not_offered():
    source, content = Source(), content_of(1)
    with pytest.raises(FollowError, match='was changed'):
        source.offer(parts_of(version(1, content), content + b'x'))
    assert not source.message
