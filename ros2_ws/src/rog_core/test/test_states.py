"""State tables: a listed event changes the state; for other events the error says who is at fault.
"""

from pathlib import Path

import pytest
from rog_core.errors import LocalProtocolError, RemoteProtocolError
from rog_core.protocol.states import TABLES

PROTOCOL = Path(__file__).parents[4] / 'docs/inside/protocol.md'
tables = pytest.mark.parametrize('table', TABLES, ids=lambda table: table.who)


@tables
def test_every_event_in_every_state_is_in_the_table_or_is_the_fault_of_who_caused_it(table):
    assert set(table.events) == {event for row in table.rows.values() for event in row}
    assert table.peer <= set(table.events)
    for state, row in table.rows.items():
        for event in [*table.events, 'an event that no table has']:
            if event in row:
                assert table.after(state, event) == row[event]
                continue
            fault = RemoteProtocolError if event in table.peer else LocalProtocolError
            with pytest.raises(fault, match=f"'{event}' cannot happen to {table.who} that is") as e:
                table.after(state, event)
            assert type(e.value) is fault and state in str(e.value)


@tables
def test_every_state_is_named_and_can_be_reached_from_the_first(table):
    reached, new = set(), [next(iter(table.rows))]
    while new:
        state = new.pop()
        assert state in table.rows, f"'{state}' follows, but has no row"
        if state not in reached:
            reached.add(state)
            new += table.rows[state].values()
    assert reached == set(table.rows)


@tables
def test_the_document_shows_the_table(table):
    if not PROTOCOL.is_file():
        pytest.skip('docs/ is not beside this workspace')
    assert table.markdown() in PROTOCOL.read_text()


@tables
def test_the_markdown_says_what_the_table_says(table):
    head, rule, *rows = [[cell.strip() for cell in line.strip('|').split('|')]
                         for line in table.markdown().splitlines()]
    assert head == [table.who, *table.events] and len(rule) == len(head)
    shown = {(row[0].strip('`'), event): after for row in rows
             for event, after in zip(head[1:], row[1:], strict=True) if after}
    assert shown == {(state, event): after for state, row in table.rows.items()
                     for event, after in row.items()}
