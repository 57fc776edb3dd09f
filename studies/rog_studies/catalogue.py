"""The studies that `rog study` runs, by name."""

from .bounds import bounds
from .coding import coding
from .gsgm import gsgm, gsgm_svrg
from .study import Study

STUDIES: dict[str, Study] = {study.name: study for study in (gsgm, gsgm_svrg, coding, bounds)}
