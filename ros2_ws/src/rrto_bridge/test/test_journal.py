"""The journal says which values to fetch, and looks at all tensors only now and then."""

import pytest
from rrto_bridge.client import journal
from rrto_bridge.client.journal import Journal
from rrto_bridge.protocol.record import HTOD, Call, Meta, Ref

META = Meta((3,), (1,), 'float32')
DEPTH = 64


class Counting(Journal):
    """A journal that counts how often it looks at all tensors."""

    looks = 0

    @property
    def depth(self):
        self.looks += 1
        return super().depth


@pytest.fixture
def book(monkeypatch):
    monkeypatch.setattr(journal, 'DEPTH', DEPTH)
    made = Counting()
    for handle in range(1, 101):
        made.made(Call(HTOD, results=(handle,), metas=(META,)), bytes(12))
    return made


def grow(book, calls):
    """Write to tensor 1 again and again; return what `deep` has named before each call."""
    named = []
    for _ in range(calls):
        found = book.deep()
        named += found
        for handle in found:
            book.fetched(handle, META, bytes(12))
        book.made(Call('aten.add_.Tensor', (Ref(1), Ref(2))))
    return named


def test_a_short_history_is_never_looked_at(book):
    for handle in range(101, 1101):
        assert not book.deep()
        book.made(Call('aten.neg.default', (Ref(2),), results=(handle,), metas=(META,)))
    assert book.looks == 0


def test_the_values_of_a_long_chain_are_fetched_before_it_is_twice_too_long(book):
    named = grow(book, 1000)
    assert set(named) == {1} and 1000 / (2 * DEPTH) <= len(named) <= 1000 / (DEPTH / 2)
    assert book.depth < 2 * DEPTH


def test_a_chain_that_cannot_be_fetched_does_not_cost_a_look_at_each_call(book):
    book.made(Call('aten.view.default', (Ref(1), (3,)), results=(101,), metas=(META,)))
    assert not grow(book, 1000)
    assert 0 < book.looks <= 1000 / (DEPTH / 2)
    book.freed(101)   # from now on, no other tensor has the memory of tensor 1
    assert grow(book, DEPTH) == [1]
