"""Measures what a second level of servers changes for robots at several sites behind a WAN.

All runs use virtual time, and the same robots, data and computing times. The three cases are: all
robots reach one server over the WAN, and share this server's access to the WAN; each site has a
server, and these servers train with one server across the WAN; one site trains alone. The first
case leaves out the radio links of the sites, which favours this case. The bench prints one JSON
line: the accuracy of the server's model after each tenth of the run, the number of iterations, and
the bytes over the WAN (in the third case over the radio of the site).
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import yaml
from fleet_env.records.events import Evaluation, read_run
from fleet_env.settings.fleet_file import read_fleet
from rog_sim.simulation import simulate

WAN = {'trace': '', 'rate': 20.0, 'latency': 0.04}  # rate in Mbit/s; latency in seconds, one way
RADIO = {'trace': '', 'rate': 100.0}  # radio of a site, which the robots of the site share


def training(options, sync: str) -> dict:
    return {'task': 'rog_tasks.classify:Classification', 'batch_size': 8, 'sync': sync,
            'learning_rate': options.rate, 'pace': options.pace, 'traffic': 'convmlp-m',
            'evaluate_every': 0}


def written(folder: Path, name: str, content: dict, options) -> Path:
    path = folder / f'{name}.yaml'
    path.write_text(yaml.safe_dump({
        'name': name, 'seed': options.seed, 'minutes': options.minutes,
        'server': {'patience': float('inf')}, **content}))
    return path


def one_level(folder: Path, options) -> Path:
    robots = [{'name': f'robot{k + 1}'} for k in range(options.fleets * options.robots)]
    return written(folder, 'one', {'training': training(options, options.one), 'link': WAN,
                                   'robots': robots}, options)


def site(folder: Path, k: int, options) -> Path:
    total = options.fleets * options.robots
    return written(folder, f'site{k}', {
        'training': training(options, options.below), 'link': RADIO,
        'upstream': {'robot': f'site{k}', 'rank': k * options.robots, 'world': total},
        'robots': [{'name': f'robot{n + 1}'} for n in range(options.robots)]}, options)


def two_levels(folder: Path, options) -> Path:
    robots = [{'name': f'site{k}', 'fleet': site(folder, k, options).name}
              for k in range(options.fleets)]
    return written(folder, 'two', {'training': training(options, options.above), 'link': WAN,
                                   'robots': robots}, options)


def run(file: Path, out: Path, options) -> dict:
    begin = time.perf_counter()
    summary = simulate(read_fleet(file), out, server_every=60 * options.minutes / 10)
    robots = summary.robots.values()
    accuracy = {round(e.t / 60, 2): round(100 * e.metric, 1) for e in read_run(out)
                if isinstance(e, Evaluation) and not e.robot and e.phase == 'online'}
    moved = sum(robot.bytes_sent + robot.bytes_received for robot in robots)
    return {'iterations': max(robot.iterations for robot in robots), 'accuracy': accuracy,
            'megabytes': round(moved / 1e6, 1), 'wall_s': round(time.perf_counter() - begin, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--fleets', type=int, default=4)
    parser.add_argument('--robots', type=int, default=16, help='of each fleet')
    parser.add_argument('--minutes', type=float, default=20.0)
    parser.add_argument('--pace', type=float, default=2.0)
    parser.add_argument('--rate', type=float, default=0.01, help='learning rate')
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--one', default='rsp:4')
    parser.add_argument('--below', default='rsp:4')
    parser.add_argument('--above', default='local:8')
    options = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for case, file in (('one_level', one_level(folder, options)),
                           ('two_levels', two_levels(folder, options)),
                           ('a_site_alone', site(folder, 0, options))):
            found[case] = run(file, folder / case, options)
    print(json.dumps({'bench': 'two_levels', **vars(options), **found}))


if __name__ == '__main__':
    main()
