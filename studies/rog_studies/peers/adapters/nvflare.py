"""NVIDIA FLARE: a server, a site on every robot, FedAvg or FedBuff.

The program follows NVFlare's guides on provisioning and jobs, and two of its examples. FedAvg is
like the example hello-pt; the program of a site is the module `nvflare_client`. FedBuff is like
the example collab/pt_async_cifar10; its server and its sites are in the module `nvflare_parts`.
In a round of FedAvg, and for an update of FedBuff, a robot trains `local_steps` batches. FedAvg
uses the workflow ScatterAndGather, which continues without a site that is late. FedBuff never waits
for a site. The time limits are those that NVFlare's guide "Timeout Troubleshooting" gives for bad
networks. After a restart of the server, the job is submitted again with the newest saved model.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from nvflare.apis.dxo import DataKind
from nvflare.app_common.aggregators import InTimeAccumulateWeightedAggregator
from nvflare.app_common.shareablegenerators import FullModelShareableGenerator
from nvflare.app_common.workflows.scatter_and_gather import ScatterAndGather
from nvflare.app_opt.pt.job_config.base_fed_job import BaseFedJob
from nvflare.app_opt.pt.job_config.model import PTModel
from nvflare.collab import CollabRecipe
from nvflare.fuel.flare_api.flare_api import new_secure_session
from nvflare.job_config.api import FedJob
from nvflare.job_config.script_runner import ScriptRunner

from .nvflare_parts import Server, Site, Watch
from .task import MODELS, SERVER, Task, arguments

PORT = 8002
ROUNDS = 1_000_000    # more rounds than a run can make; the study ends the run
STRAGGLERS = 10  # seconds that a round waits for the last site; the default of ScatterAndGather
# seconds for the transfer of a model; from "High-Latency Networks" in NVFlare's guide
TASK_LIMIT = 600.0
# maximum seconds until the startup kits exist, and until all robots are connected for a job
START_LIMIT = 180.0
ADMIN = 'admin@study.org'
KITS, READY = 'kits', 'ready'
PROJECT = '''api_version: 3
name: study
description: the study of peers
participants:
  - {{name: {server}, type: server, org: study, fed_learn_port: {port}, host_names: ["{address}"],
     default_host: "{address}"}}
{sites}
  - {{name: {admin}, type: admin, org: study, role: project_admin}}
builders:
  - path: nvflare.lighter.impl.workspace.WorkspaceBuilder
    args: {{template_file: [master_template.yml]}}
  - path: nvflare.lighter.impl.static_file.StaticFileBuilder
    args: {{config_folder: config}}
  - path: nvflare.lighter.impl.cert.CertBuilder
  - path: nvflare.lighter.impl.signature.SignatureBuilder
'''


def fedavg(folder: Path, robots: int, weights: Path) -> FedJob:
    """Return the job of FedAvg; ``weights``: a file with the initial weights."""
    least = max(robots - 1, 1)  # if one robot is missing or late, the others continue
    settings = Task(folder).settings
    job = BaseFedJob(name='fedavg', min_clients=least)
    model = MODELS[settings.model]
    ids = job.to_server(PTModel({'path': f'{model.__module__}.{model.__qualname__}', 'args': {
        'channels': settings.channels, 'classes': settings.classes}}, initial_ckpt=str(weights)))
    job.to_server(FullModelShareableGenerator(), id='shareable_generator')
    job.to_server(InTimeAccumulateWeightedAggregator(expected_data_kind=DataKind.WEIGHTS),
                  id='aggregator')
    job.to_server(Watch(str(folder)), id='watch')
    job.to_server(ScatterAndGather(
        min_clients=least, num_rounds=ROUNDS, wait_time_after_min_received=STRAGGLERS,
        aggregator_id='aggregator', persistor_id=ids['persistor_id'],
        shareable_generator_id='shareable_generator'))
    job.to_clients(ScriptRunner(script=str(Path(__file__).with_name('nvflare_client.py')),
                                script_args=f'--folder {folder}'))
    job.to_clients({'get_task_timeout': TASK_LIMIT, 'submit_task_result_timeout': TASK_LIMIT})
    return job


def fedbuff(folder: Path, robots: int, weights: Path) -> FedJob:
    """Return the job of FedBuff; ``weights``: a file with the initial weights."""
    return CollabRecipe('fedbuff', server=Server(str(folder), str(weights)),
                        client=Site(str(folder)), min_clients=max(robots - 1, 1),
                        sync_task_timeout=START_LIMIT).finalize()


def main() -> None:
    """Run as the server or as a robot, as ``--role`` says."""
    options = arguments((('--workflow', {'default': 'fedavg', 'choices': ('fedavg', 'fedbuff')}),))
    ready = options.folder / 'work' / SERVER / READY
    if options.role == 'robot':
        _wait_for(ready)
        # A robot gets a copy of its startup kit once, and keeps it.
        kit = Path('kit').absolute()
        if not kit.exists():
            shutil.copytree(ready.parent / KITS / options.name, kit)
        os.execv('/bin/bash', ['bash', str(kit / 'startup' / 'sub_start.sh')])
    if not ready.exists():
        _provision(options.robots, options.server)
        ready.touch()
    server = subprocess.Popen(['bash', str(Path(KITS, SERVER, 'startup', 'sub_start.sh'))])
    signal.signal(signal.SIGTERM, lambda *_: server.terminate())
    saved = sorted(Path(KITS, SERVER).rglob('FL_global_model.pt'),
                   key=lambda path: path.stat().st_mtime)
    weights = saved[-1] if saved else Path('weights.pt')
    if not saved:
        torch.save(Task(options.folder).model().state_dict(), weights)
    make = fedavg if options.workflow == 'fedavg' else fedbuff
    _submit(make(options.folder, options.robots, weights.absolute()), options.robots, server)
    sys.exit(server.wait())


def _provision(robots: int, address: str) -> None:
    """Make NVFlare's startup kits (certificates, settings) of server, robots and administrator."""
    sites = '\n'.join(f'  - {{name: robot{number}, type: client, org: study}}'
                      for number in range(1, robots + 1))
    Path('project.yml').write_text(PROJECT.format(
        server=SERVER, port=PORT, address=address, admin=ADMIN, sites=sites))
    subprocess.run(['nvflare', 'provision', '-p', 'project.yml', '-w', 'provisioned'], check=True,
                   timeout=START_LIMIT)
    Path(KITS).symlink_to(Path('provisioned', 'study', 'prod_00'))
    # By default a server stores jobs in /tmp/nvflare, which two servers on one machine would share.
    local = Path(KITS, SERVER, 'local')
    text, own = (local / 'resources.json.default').read_text(), Path('nvflare').absolute()
    (local / 'resources.json').write_text(text.replace('/tmp/nvflare', str(own)))


def _submit(job: FedJob, robots: int, server: subprocess.Popen) -> None:
    """Submit the job when all robots are connected, at the latest after `START_LIMIT` s."""
    job.export_job('jobs')
    until = time.monotonic() + START_LIMIT
    while server.poll() is None:
        late = time.monotonic() > until
        try:
            session = new_secure_session(ADMIN, str(Path(KITS, ADMIN).absolute()))
            try:
                there = [client.name for client in session.get_system_info().client_info]
                print(f'connected: {there}', flush=True)
                if len(there) == robots or late:
                    print(f'job {session.submit_job(str(Path("jobs", job.name).absolute()))}',
                          flush=True)
                    return
            finally:
                session.close()
        # while its server starts, NVFlare raises several types of exceptions
        except Exception as error:
            if late:
                sys.exit(f'the server must take the job within {START_LIMIT:g} s, but did not: '
                         f'{error!r}')
        time.sleep(1.0)


def _wait_for(path: Path) -> None:
    until = time.monotonic() + START_LIMIT
    while not path.exists():
        if time.monotonic() > until:
            sys.exit(f'the server must write {path} within {START_LIMIT:g} s, but did not')
        time.sleep(0.1)


if __name__ == '__main__':
    main()
