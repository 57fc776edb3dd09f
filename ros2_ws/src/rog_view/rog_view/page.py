"""The page of `rog view`: its content and its style.

Names and texts come from the network. The page passes them only to elements that show plain text:
labels, table cells and the canvas of a chart. It never passes them to an element that accepts HTML.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

from nicegui import ui
from rog_cli.commands.control import ControlError
from rog_cli.display.fleet_state import COLUMNS, CURVES, Robot

from .source import Source, View

REFRESH = 1.0  # seconds between two updates of the page
# Maps each state to the CSS class with its colour. States in red (bad) and violet (odd) need
# attention.
LOOKS = {'computing': 'good', 'training': 'good', 'pushing': 'busy', 'pulling': 'busy',
         'waiting': 'late', 'retired': 'odd', 'away': 'bad', 'paused': 'over',
         'starved': 'odd', 'stopped': 'over'}
# Colours of the robots in the order of their names, the same as in the figures of `rog plot`.
COLORS = ['#1f77b4', '#ff7f0e', '#2ca02c', '#d62728', '#9467bd', '#8c564b', '#e377c2', '#7f7f7f',
          '#bcbd22', '#17becf']
LEGENDS = 16  # maximum number of robots for which a legend has room
TITLES = {'iter': 'iteration', 'acc': 'accuracy', 'stale': 'staleness', 'pushed': 'pushed',
          'compute': 'computing', 'comm': 'communicating', 'stall': 'waiting'}
MTA = ('Minimum: the share of the rows that every transfer must carry. MTA time: how long the '
       'slowest link needs for it; every transfer lasts so long, and a faster link carries more.')

CSS = '''
body { background: #f5f6f8; color: #1c2430; }
.nicegui-content { padding: 20px 24px; gap: 16px; max-width: 1400px; margin: 0 auto; width: 100%; }
.row-of { display: flex; flex-wrap: wrap; align-items: center; gap: 10px 14px; width: 100%; }
.pair { display: flex; align-items: center; gap: 14px; max-width: 100%; }
.pair .q-btn { flex: none; }
.method { width: 16em; min-width: 0; flex: 0 1 auto; }
.card { background: white; border: 1px solid #dfe3e8; border-radius: 6px; padding: 12px 16px;
        width: 100%; overflow-x: auto; }
.title { font-size: 20px; font-weight: 600; }
.muted { color: #5b6675; }
.notice { background: #fff4d6; border: 1px solid #e6c75a; border-radius: 6px; padding: 10px 14px;
          width: 100%; }
.head { font-weight: 600; margin-bottom: 4px; }
.badge { display: inline-block; border-radius: 4px; padding: 1px 8px; white-space: nowrap;
         max-width: 36ch; overflow: hidden; text-overflow: ellipsis; vertical-align: bottom;
         background: #e8ebef; color: #333d4a; }
.good { background: #dcf2e3; color: #14532d; } .busy { background: #dbeafe; color: #1e3a8a; }
.late { background: #fef0c7; color: #6b3f05; } .odd { background: #ece3fb; color: #4c1d95; }
.bad { background: #fde2e1; color: #7f1d1d; } .over { background: #e8ebef; color: #333d4a; }
.text { overflow-wrap: anywhere; white-space: pre-wrap; }
.q-btn.disabled { filter: grayscale(1) opacity(.55); }
.charts { display: grid; gap: 16px; width: 100%;
          grid-template-columns: repeat(auto-fit, minmax(min(520px, 100%), 1fr)); }
.chart { height: 240px; width: 100%; }
@media (max-width: 700px) { .nicegui-content { padding: 10px 8px; } .card { padding: 8px; } }
.events { max-height: 220px; overflow-y: auto; width: 100%; }
.q-table th { font-weight: 600; color: #5b6675; white-space: pre-line; line-height: 1.2; }
.q-table td, .q-table th { padding: 4px 10px !important; font-variant-numeric: tabular-nums; }
'''


def build(source: Source) -> None:
    """Build the page of ``source`` in one browser, and keep it up to date."""
    ui.add_css(CSS)
    page = Page(source)
    page.show()
    if source.live:
        ui.timer(REFRESH, page.show)


class Page:
    """The elements of a page in one browser."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._live = source.live
        with ui.element('div').classes('row-of'):
            ui.label('ROG fleet').classes('title')
            self._state = ui.label().classes('badge').props('id=state')
            self._headline = ui.label().props('id=headline')
            self._where = ui.label().classes('muted')
        self._explained = ui.label(MTA).classes('muted').props('id=mta')
        self._notice = ui.label().classes('notice text').props('id=notice')
        if self._live:
            self._build_controls()
        with ui.element('div').classes('card'):
            self._table = _robots_table(self._live)
            self._causes = ui.label().classes('text muted').props('id=causes')
        with ui.element('div').classes('charts'):
            self._charts = {name: _chart(title) for name, title in CURVES.items()}
        with ui.element('div').classes('card'):
            ui.label('What happened').classes('head')
            self._events = ui.label().classes('text events').props('id=events')

    def show(self) -> None:
        """Show the present view of the source."""
        view = self._source.view
        fleet = view.fleet
        self._state.set_text(fleet.state or 'no fleet')
        self._state.classes(replace=f'badge {LOOKS.get(fleet.state, "over")}')
        self._headline.set_text(' · '.join(filter(None, (
            fleet.sync, fleet.time, fleet.minimum))) if fleet.found else '')
        self._explained.set_visibility(bool(fleet.minimum))
        self._where.set_text(f'{view.title}{fleet.host and ", server: " + fleet.host}')
        self._notice.set_text(view.notice)
        self._notice.set_visibility(bool(view.notice))
        self._table.update_rows([_row(robot, self._live) for robot in fleet.robots],
                                clear_selection=False)
        self._causes.set_text('\n'.join(fleet.causes()))
        self._causes.set_visibility(bool(fleet.causes()))
        for name, chart in self._charts.items():
            _draw(chart, view, name)
        self._events.set_text('\n'.join(
            f'{event.t:7.0f} s   {event.robot or "fleet"}: {event.text}'
            for event in reversed(view.events)) or 'Nothing yet.')
        if self._live:
            self._enable(view.unable)

    # -- controls ---

    def _build_controls(self) -> None:
        with ui.element('div').classes('card row-of'):
            self._buttons = [self._button('Save a checkpoint', 'save', lambda: self._ask(
                'save_checkpoint', name=''))]
            # keeps the button and its input together in a narrow window
            with ui.element('div').classes('pair'):
                self._buttons.append(self._button('Change the method', 'set_sync', self._set_sync))
                self._method = ui.input(placeholder='for example rsp:4').props(
                    'dense outlined maxlength=200').classes('method')
            with ui.dialog() as self._sure, ui.card():
                ui.label('Stop the run? All robots get the final model, the results are written, '
                         'and the fleet ends.')
                with ui.element('div').classes('row-of'):
                    ui.button('Stop the run', color='negative', on_click=lambda: self._sure.submit(
                        True)).props('no-caps unelevated id=stop-sure')
                    ui.button('Go on', on_click=lambda: self._sure.submit(False)).props(
                        'no-caps flat')
            self._buttons.append(self._button('Stop the run', 'stop', self._stop, 'negative'))
            self._unable = ui.label().classes('muted text').props('id=unable')
        self._asking = False

    def _button(self, text: str, name: str, do: Callable[[], Awaitable[None]],
                color: str = 'primary') -> ui.button:
        return ui.button(text, color=color, on_click=do).props(f'no-caps unelevated id={name}')

    async def _set_sync(self) -> None:
        await self._ask('set_sync', sync=self._method.value or '')

    async def _stop(self) -> None:
        if await self._sure:
            await self._ask('stop')

    async def _ask(self, service: str, **values: str) -> None:
        self._asking = True
        self._enable('')
        try:
            said, good = await self._source.ask(service, **values), True
        except ControlError as error:
            said, good = str(error), False
        self._asking = False
        self.show()
        ui.notify(said or 'done' if good else f'refused: {said}', multi_line=True,
                  type='positive' if good else 'negative', timeout=8000, close_button='ok')

    def _enable(self, unable: str) -> None:
        for button in (*self._buttons, self._method):
            button.set_enabled(not (unable or self._asking))
        self._unable.set_text(unable)


def _robots_table(live: bool) -> ui.table:
    columns = [{'name': 'robot', 'label': 'robot', 'field': 'robot', 'align': 'left'},
               {'name': 'doing', 'label': 'state', 'field': 'doing', 'align': 'left'}]
    columns += [{'name': name, 'label': '\n'.join(filter(None, (TITLES.get(name, name), unit))),
                 'field': name, 'align': 'right'} for name, unit in COLUMNS.items()]
    if live:
        columns.append({'name': 'silent', 'label': 'last heard\ns ago', 'field': 'silent',
                        'align': 'right'})
    table = ui.table(columns=columns, rows=[], row_key='robot').props(
        'flat dense hide-bottom id=robots :rows-per-page-options="[0]"').style('width: 100%')
    table.add_slot('body-cell-doing', '<q-td :props="props"><span :title="props.row.doing" '
                   ':class="\'badge \' + props.row.look">{{ props.row.doing }}</span></q-td>')
    return table


def _row(robot: Robot, live: bool) -> dict[str, str]:
    silent = f'{robot.silent:.0f}' if robot.heard else '-'
    look = 'bad' if live and robot.heard and robot.is_silent and robot.state != 'stopped' \
        else LOOKS.get(robot.state, 'over')
    return {'robot': robot.name, 'doing': robot.doing, 'look': look, 'silent': silent,
            **robot.cells()}


def _chart(title: str) -> ui.echart:
    with ui.element('div').classes('card'):
        return ui.echart({
            'animation': False, 'color': COLORS,
            'title': {'text': title, 'left': 0, 'top': 0,
                      'textStyle': {'fontSize': 14, 'color': '#1c2430'}},
            'grid': {'left': 44, 'right': 16, 'top': 40, 'bottom': 40},
            'legend': {'top': 0, 'left': '45%', 'right': 0, 'type': 'scroll', 'icon': 'roundRect',
                       'itemHeight': 4},
            # texts are never shown as HTML
            'tooltip': {'trigger': 'axis', 'renderMode': 'richText'},
            'textStyle': {'fontFamily': 'Roboto, sans-serif'},
            'xAxis': {'type': 'value', 'name': 's', 'nameLocation': 'middle', 'nameGap': 24},
            'yAxis': {'type': 'value', 'scale': title.startswith('accuracy')},
            'series': []}).classes('chart')


def _draw(chart: ui.echart, view: View, name: str) -> None:
    series: list[dict[str, Any]] = [
        {'type': 'line', 'name': robot, 'data': points, 'showSymbol': len(points) < 3,
         'lineStyle': {'width': 1.5}}
        for robot, points in sorted(view.curves.get(name, {}).items()) if points]
    if chart.options['series'] != series:
        chart.options['series'] = series
        chart.options['legend']['show'] = len(series) <= LEGENDS
        times = [t for line in series for t, _ in (line['data'][0], line['data'][-1])]
        chart.options['xAxis'] |= {'min': math.floor(min(times, default=0)),
                                   'max': math.ceil(max(times, default=1))}
        chart.update()
