"""How long and with how many bytes a version reaches a reader, over emulated links.

`python bench_follow.py [--mb 2] [--rate 10 1] [--cut 60]` prints JSON lines for each link: seconds
from the announcement of a version until it is in use, bytes on the link with headers, and the
seconds that the link's rate needs for these bytes (`bound`). `head`: only the last layer has
changed. `rollback`: a person goes back to the version before; `heard`: seconds until the reader
knows it. `--cut`: from the 15th second on, the link carries nothing for so many seconds; at
0.1 Mbit/s and 0.2 MB, that is in the middle of the first version.
"""

import argparse
import json
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import torch
from fleet_env.emulated.shaped import ShapedLink
from fleet_env.links.trace import LinkTrace
from fleet_env.settings.fleet import LinkConfig
from fleet_env.settings.fleet_file import link_trace
from fleet_models import Following, FollowOptions

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


def taken(following, link, give):
    """Return seconds until a version is heard of and in use, and bytes, from its announcement."""
    bytes_, began, heard = link.bytes, time.monotonic(), None
    given = give()
    while not following.take():
        if following.newest is not None and following.newest.digest == given.digest:
            heard = heard or time.monotonic() - began
        time.sleep(0.002)
    now = time.monotonic() - began
    return heard or now, now, link.bytes - bytes_


def measured(name, made, mb, bound):
    link, up, model = made(), made(), net(mb, 99)
    model[0].weight.data.normal_()
    with tempfile.TemporaryDirectory() as folder:
        fleet = Offering(folder, link_of=lambda robot: link)
        try:
            with closing(Following(model, FollowOptions('/rog', link=up))) as following:
                fleet.give(net(0.1))     # of another shape: it is refused when the session is open
                while 'shape' not in following.reason:
                    time.sleep(0.01)
                first = fleet.write(net(mb))
                for what, give in (('all', lambda: fleet.announce(first) or first),
                                   ('head', lambda: fleet.give(net(mb, 1))),
                                   ('rollback', lambda: fleet.announce(first, True) or first)):
                    heard, seconds, nbytes = taken(following, link, give)
                    size = fleet.offer._source.offered.size
                    print(json.dumps({'link': name, 'changed': what, 'file': size,
                                      'heard': round(heard, 2), 'seconds': round(seconds, 2),
                                      'bytes': nbytes, 'bound': round(bound(nbytes), 2)}),
                          flush=True)
        finally:
            fleet.close()


def limited(rate, cut):
    """Return a link of ``rate`` Mbit/s that is dead for ``cut`` seconds."""
    trace = LinkTrace([0, 15, 15 + cut], [rate, 0, rate], 3600) if cut else \
        link_trace(LinkConfig(rate=rate))
    return Counting(trace, 0.02)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--mb', type=float, default=2.0)
    parser.add_argument('--rate', type=float, nargs='*', default=[100, 10, 1, 0.1], help='Mbit/s')
    parser.add_argument('--cut', type=float, default=0.0, help='s')
    options = parser.parse_args()
    for rate in options.rate:
        measured(f'{rate:g} Mbit/s, 20 ms', lambda rate=rate: limited(rate, options.cut),
                 options.mb, lambda nbytes, rate=rate: nbytes / (rate * 125e3))
    if options.cut:
        return
    trace = link_trace(LinkConfig(trace='outdoor'))
    measured('outdoor record', lambda: Counting(trace, 0.005), options.mb, lambda nbytes: 0.0)


if __name__ == '__main__':
    main()
