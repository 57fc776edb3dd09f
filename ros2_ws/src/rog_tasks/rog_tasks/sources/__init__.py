"""Labelled images of real robots: a live topic, a recording, a folder or an archive.

`docs/howto/data.md` says how a task names its source. Nothing here uses ROS: a source reads a
file, or receives messages. A message can be any object that has the fields of the ROS
message.
"""

from rog_tasks.sources.camera import CameraSource
from rog_tasks.sources.open import open_source
from rog_tasks.sources.source import Report, Source

__all__ = ['CameraSource', 'Report', 'Source', 'open_source']
