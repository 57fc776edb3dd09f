"""Versions for tests, with descriptions that differ only in what a test says."""

ABOUT = {'run': 'outdoor-1', 'fleet': 'outdoor', 'method': 'rsp:4', 'iteration': 7,
         'time': '2026-11-28T10:00:00+0000', 'task': 'a:B', 'measured_on': "the server's model",
         'measured_by': 'parameter server'}


def write(store, *accuracies):
    """Write a version for each of the accuracies; its model is 'weights 0', 'weights 1', ..."""
    return [store.write(b'weights %d' % n, accuracy=accuracy, **{**ABOUT, 'iteration': n})
            for n, accuracy in enumerate(accuracies)]
