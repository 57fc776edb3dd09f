"""A training loop of your own, which takes part in a fleet through the fleet's optimizer.

The task in the server's fleet file has the same model. Each robot runs this program:

    # Terminal 1: the server
    rog fleet up examples/my_fleet.yaml --only server --set training.task=own_task:Digits
    # Terminal 2: a robot, with the network settings of the fleet
    eval "$(rog fleet env examples/my_fleet.yaml)"
    python examples/own_loop.py robot1
    # Terminal 3: the other robot
    eval "$(rog fleet env examples/my_fleet.yaml)"
    python examples/own_loop.py robot2
"""

import sys

from own_task import Digits
from rog_worker.connect import connect

ROBOTS = ('robot1', 'robot2')

robot = sys.argv[1] if len(sys.argv) > 1 else ROBOTS[0]
task = Digits()
model = task.model()
with connect(robot, timeout=120) as fleet:
    optimizer = fleet.optimizer(model, lr=0.05, momentum=0.9)    # waits for the server
    for batch in task.batches(ROBOTS.index(robot), len(ROBOTS)):
        optimizer.zero_grad()
        loss = task.loss(model, batch)
        loss.backward()
        optimizer.step()                                         # pushes, pulls, updates the model
        fleet.report(loss=loss.item())                           # shown by rog status, and recorded
        if optimizer.iteration % 20 == 1:
            accuracy = task.evaluate(model)
            fleet.report(accuracy=accuracy)
            print(f'{robot}: iteration {optimizer.iteration - 1}, loss {loss.item():.3f}, '
                  f'accuracy {100 * accuracy:.1f} %', flush=True)
        if optimizer.stopped:                                    # the run is over
            break
    accuracy = task.evaluate(model)                              # accuracy of the final model
    fleet.report(accuracy=accuracy)                              # for the fleet's table of results
print(f'{robot}: done, accuracy {100 * accuracy:.1f} %')
