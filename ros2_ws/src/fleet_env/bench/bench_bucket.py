"""Measure the computing time of one packet on the emulated link, and of one bisection.

The bisection, for comparison, searches a list with as many elements as the trace has samples.
"""

import bisect
import json
import time

from fleet_env.links.bucket import TokenBucket
from fleet_env.links.generate import generate

PACKETS = 50_000

trace = generate('outdoor')
bucket = TokenBucket(trace)
times = trace.times.tolist()
begin = time.perf_counter()
for i in range(PACKETS):
    bucket.offer(1300, i * 1e-3)
offer = (time.perf_counter() - begin) / PACKETS
begin = time.perf_counter()
for i in range(PACKETS):
    bisect.bisect(times, i * 1e-2)
bare = (time.perf_counter() - begin) / PACKETS
print(json.dumps({'bench': 'token_bucket', 'offer_us': round(offer * 1e6, 3),
                  'bisect_us': round(bare * 1e6, 3), 'ratio': round(offer / bare, 1)}))
