"""How long and with how many bytes a version reaches a reader, over emulated links.

`python bench_follow.py [--mb 2] [--rate 10 1]` prints JSON lines for each link: seconds from the
announcement of a version until it is in use, bytes on the link with headers, and the seconds that
the link's rate needs for these bytes (`bound`). `head`: only the last layer has changed.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import torch
from fleet_env.emulated.shaped import ShapedLink
from fleet_env.settings.fleet import LinkConfig
from fleet_env.settings.fleet_file import link_trace
from fleet_models import follow

sys.path.append(str(Path(__file__).parents[4] / 'testing'))
from offering import Offering


class Counting(ShapedLink):
    """A link that counts the bytes of payload."""

    bytes = 0

    def send(self, nbytes, publish, now, lossy=False):
        self.bytes += nbytes + 120     # headers of DDS, UDP and IP
        super().send(nbytes + 120, publish, now, lossy)


def net(mb, head=0):
    torch.manual_seed(1)
    body = torch.nn.Linear(1000, int(mb * 1e6 / 4 / 1001) - 10)
    torch.manual_seed(head)
    return torch.nn.Sequential(body, torch.nn.ReLU(), torch.nn.Linear(body.out_features, 10))


def taken(fleet, following, link, give):
    """Return seconds and bytes from the announcement of a version until it is in use."""
    bytes_, began = link.bytes, time.monotonic()
    give()
    while not following.take():
        following.wait(1.0)
    return time.monotonic() - began, link.bytes - bytes_


def measured(name, made, mb, bound):
    link, model = made(), net(mb, 99)
    model[0].weight.data.normal_()
    with tempfile.TemporaryDirectory() as folder:
        fleet = Offering(folder, link_of=lambda robot: link)
        try:
            with follow(model) as following:
                fleet.give(net(0.1))     # of another shape: it is refused when the session is open
                while 'shape' not in following.reason:
                    time.sleep(0.01)
                for what, new in (('all', net(mb)), ('head', net(mb, 1))):
                    seconds, nbytes = taken(fleet, following, link, lambda new=new: fleet.give(new))
                    size = following.newest and fleet.offer._source.offered.size
                    print(json.dumps({'link': name, 'changed': what, 'file': size,
                                      'seconds': round(seconds, 2), 'bytes': nbytes,
                                      'bound': round(bound(nbytes), 2)}), flush=True)
        finally:
            fleet.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--mb', type=float, default=2.0)
    parser.add_argument('--rate', type=float, nargs='*', default=[100, 10, 1, 0.1], help='Mbit/s')
    options = parser.parse_args()
    for rate in options.rate:
        trace = link_trace(LinkConfig(rate=rate))
        measured(f'{rate:g} Mbit/s, 20 ms', lambda trace=trace: Counting(trace, 0.02), options.mb,
                 lambda nbytes, rate=rate: nbytes / (rate * 125e3))
    trace = link_trace(LinkConfig(trace='outdoor'))
    measured('outdoor record', lambda: Counting(trace, 0.005), options.mb, lambda nbytes: 0.0)


if __name__ == '__main__':
    main()
