"""Runs nodes in the process of the test, in a separate DDS domain; the test spins the nodes."""

from spun_nodes import SpunNodes


class OneProcess(SpunNodes):
    """Provides the node `caller`, which calls services of the node `thing`."""

    def __init__(self):
        super().__init__()
        self.caller = self.node('caller', start_parameter_services=False)
        self._clients = {}

    def call(self, kind, name, **fields):
        """Call a service of `thing`; also raise the exception of the service's callback, if any."""
        if name not in self._clients:
            self._clients[name] = self.caller.create_client(kind, f'/thing/{name}')
        client = self._clients[name]
        self.until(client.service_is_ready)
        future = client.call_async(kind.Request(**fields))
        self.until(future.done)
        return future.result()
