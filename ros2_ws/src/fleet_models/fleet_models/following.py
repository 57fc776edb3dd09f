"""Take up what a fleet learns: `follow(model)` for a program's own loop, `Follower` for nodes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fleet_env.durable import finite, write_whole
from fleet_env.errors import VersionError
from fleet_env.settings.fleet import AccessConfig
from fleet_env.versions import ABOUT_FILE, MODEL_FILE, SCHEMA, Version, read_about

from .errors import FollowError
from .fetch import Fetched
from .reader import Reader, ReaderOptions
from .taking import MARGIN, Check, Use, checked, refusal, tensors_of
from .wire import Announcement

if TYPE_CHECKING:
    from torch import Tensor, nn

# Makes of a model's new tensors what can be put in the place of the present model.
Prepare = Callable[[dict[str, 'Tensor']], Any]


class Ready(NamedTuple):
    """A version that was fetched and checked. ``prepared``: what `Prepare` has made of it."""

    version: Version
    state: dict[str, Tensor]
    prepared: Any
    checked: float
    content: bytes


@dataclass(frozen=True)
class FollowOptions:
    """What a part of the suite follows, and what it takes up; see `follow`.

    ``server``: namespace of the fleet; empty: nothing is followed.
    """

    server: str = ''
    margin: float = MARGIN
    check: Check | None = None
    keep: Path | None = None

    def follower(self, model: nn.Module, prepare: Prepare, robot: str, access: AccessConfig
                 ) -> Follower:
        """Return a follower with these options for a model of a robot."""
        return Follower(model, ReaderOptions(self.server, robot, access), self.margin, self.check,
                        prepare, self.keep)


class Follower:
    """Fetches and checks the versions of a fleet in a thread; its owner takes them up when it can.

    :param model: a model of the fleet's task; only its names, shapes and types are read.
    :param margin: a version may be so much less accurate (0 to 1) than the one in use.
    :param check: measures a copy of the model with the new weights, see `taking.Check`.
    :param prepare: called in the thread with the new tensors; a FollowError refuses the version.
    :param keep: folder that keeps the version in use, so that a robot that starts without a link
        begins with it; None: none.
    """

    def __init__(self, model: nn.Module, options: ReaderOptions, margin: float = MARGIN,
                 check: Check | None = None, prepare: Prepare | None = None,
                 keep: Path | None = None) -> None:
        if not 0 <= margin <= 1:
            raise ValueError(f'margin must be 0 to 1, such as {MARGIN}, got {margin}')
        self._model, self._margin, self._check = model, margin, check
        self._prepare, self._keep = prepare, keep
        self._use, self._since = Use(), math.nan
        self._refused = ''          # why the last version that was fetched was not taken
        self._ready: Ready | None = None
        self._changed = threading.Condition()
        self._fetched: Fetched | None = None     # to be examined
        self._closed = False
        kept = self._read_kept()
        if kept is not None:
            self._examine(kept[0], kept[1], True)
        self._reader = Reader(options, self._refusal, self._on_fetched, self.says)
        if kept is not None:
            self._reader.fetch.know(kept[1])
        self._examining = threading.Thread(target=self._examine_all, name='examine', daemon=True)
        self._examining.start()

    # -- for the owner -----------------------------------------------------------------------------

    @property
    def ready(self) -> Ready | None:
        """The version to take up now; None: the present one stays."""
        return self._ready

    def taken(self, ready: Ready) -> None:
        """Note that a version is in use from now on."""
        with self._changed:
            self._use, self._since = Use(ready.version, ready.checked), time.monotonic()
            self._refused = ''
            if self._ready is ready:
                self._ready = None
        if self._keep is not None:
            self._write_kept(ready)
        self._reader.say()

    def refuse(self, ready: Ready, why: str) -> None:
        """Note that a version cannot be taken up after all."""
        with self._changed:
            self._refused = f'version {ready.version.number}: {why}'
            if self._ready is ready:
                self._ready = None
        self._reader.say()

    @property
    def version(self) -> Version | None:
        """The version in use; None: none was taken up yet."""
        return self._use.version

    @property
    def newest(self) -> Version | None:
        """The newest version that the fleet has announced."""
        found = self._reader.fetch.newest
        return None if found is None else found.version

    @property
    def closed(self) -> bool:
        """Whether `close` was called; then `Prepare` should end soon."""
        return self._closed

    @property
    def reason(self) -> str:
        """Why the newest version is not in use; empty if it is, or is on its way."""
        newest, fetch = self._reader.fetch.newest, self._reader.fetch
        if newest is not None and self._use.version is not None \
                and newest.version.digest == self._use.version.digest:
            return ''
        if newest is not None and fetch.refused:
            return f'version {newest.version.number} is not taken: {fetch.refused}'
        return self._refused or self._reader.trouble

    def says(self) -> dict[str, Any]:
        """Return what is known, for people: numbers, text, None if unknown."""
        fetch, used, newest = self._reader.fetch, self._use.version, self.newest
        present = fetch.present
        return finite({
            'version': used and used.number, 'accuracy': used and used.accuracy,
            'age': time.monotonic() - self._since, 'newest': newest and newest.number,
            'fetched': fetch.got / present.size if present is not None and present.size else None,
            'reason': self.reason[:400]})

    def wait(self, seconds: float) -> bool:
        """Wait at most ``seconds`` until a version is ready; return whether one is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._ready is not None, seconds)

    def close(self) -> None:
        """Follow no longer; what is in use stays."""
        self._reader.close()
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # -- the reader's thread, and one that examines, because a check may take long -----------------

    def _refusal(self, what: Announcement) -> str:
        return refusal(what, self._use, self._margin)

    def _on_fetched(self, fetched: Fetched) -> None:
        with self._changed:
            self._fetched = fetched     # instead of one that still waits
            self._changed.notify_all()

    def _examine_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._fetched is not None)
                fetched, self._fetched = self._fetched, None
                if self._closed or fetched is None:
                    return
                self._ready = None     # its owner has had time enough to take it up
            what = fetched.announcement
            self._examine(what.version, fetched.content, what.pinned)
            self._reader.say()

    def _examine(self, version: Version, content: bytes, pinned: bool) -> None:
        """Check a version whose file is here; offer it to the owner, or say why not."""
        try:
            state = tensors_of(content, self._model)
            found = math.nan
            if self._check is not None:
                found = checked(self._check, with_state(self._model, state), self._use,
                                self._margin, pinned)
            prepared = None if self._prepare is None else self._prepare(state)
        except FollowError as error:
            if self._closed:
                return
            with self._changed:
                self._refused = f'version {version.number} is not taken: {error}'
            return
        with self._changed:
            self._ready = Ready(version, state, prepared, found, content)
            self._refused = ''
            self._changed.notify_all()

    # -- the version that is kept ------------------------------------------------------------------

    def _read_kept(self) -> tuple[Version, bytes] | None:
        if self._keep is None:
            return None
        try:
            version = read_about(self._keep)
            content = (self._keep / MODEL_FILE).read_bytes()
        except (VersionError, OSError):   # nothing was kept yet
            return None
        return (version, content) if hashlib.sha256(content).hexdigest() == version.digest else None

    def _write_kept(self, ready: Ready) -> None:
        """Keep a version; a crash between the two files leaves none, because of the digest."""
        assert self._keep is not None
        text = json.dumps({'schema': SCHEMA, **finite(dataclasses.asdict(ready.version))}, indent=2)
        try:
            self._keep.mkdir(parents=True, exist_ok=True)
            write_whole(self._keep / MODEL_FILE, ready.content)
            write_whole(self._keep / ABOUT_FILE, text.encode() + b'\n')
        except OSError as error:
            self._refused = f'{self._keep} cannot keep the version in use: {error.strerror}'


class Replacing(Follower):
    """A model that is replaced between two inferences: each version is an object of its own.

    So an inference that runs in another thread meanwhile ends with the version that it began with.
    """

    def __init__(self, model: nn.Module, options: FollowOptions, robot: str, access: AccessConfig
                 ) -> None:
        self._present, self._taking = model, threading.Lock()
        super().__init__(model, ReaderOptions(options.server, robot, access), options.margin,
                         options.check, lambda state: with_state(self._present, state),
                         options.keep)

    def current(self) -> nn.Module:
        """Return the model to use for the next inference: the newest version that is ready."""
        if self._ready is not None:
            with self._taking:
                if (ready := self._ready) is not None:
                    self._present = ready.prepared
                    self.taken(ready)
        return self._present


class Following(Follower):
    """A model that takes up versions in place, when the program says `take`."""

    def take(self) -> bool:
        """Take up the newest version if one is ready; call it between two inferences.

        Returns whether the weights have changed. The model's tensors stay the same objects, on
        their devices.
        """
        ready = self._ready
        if ready is None:
            return False
        try:
            self._model.load_state_dict(ready.state)
        except Exception as error:   # a module of a user may load its state in its own way
            self.refuse(ready, f'it does not fit the model: {str(error)[:300]}')
            return False
        self.taken(ready)
        return True


def with_state(model: nn.Module, state: dict[str, Tensor]) -> nn.Module:
    """Return a copy of a model with other tensors.

    :raises FollowError: the model cannot be copied.
    """
    import copy
    try:
        twin = copy.deepcopy(model)
        twin.load_state_dict(state)
    except Exception as error:   # the objects of a model can raise anything
        raise FollowError(f'the model cannot be copied with it: {type(error).__name__}: '
                          f'{str(error)[:300]}') from error
    return twin


@contextmanager
def follow(model: nn.Module, server: str = '/rog', margin: float = MARGIN,
           check: Check | None = None, robot: str = '', keep: str | Path | None = None,
           key: str = '', open: bool = False) -> Iterator[Following]:
    """Follow what a fleet learns while the context is open.

    Example::

        with follow(model) as fleet:
            while True:
                fleet.take()          # between two inferences
                act(model(observe()))

    :param model: a model of the fleet's task; `Following.take` changes its weights, nothing else
        does.
    :param server: namespace of the fleet.
    :param margin: a version is taken if its accuracy, 0 to 1, is at most so much below that of the
        one in use.
    :param check: called with a copy of the model with the new weights; returns how good it is, the
        more the better. It must not be below its value for the version in use by more than
        ``margin``, and may raise an error to refuse the version.
    :param robot: name of this robot; by default that of the key.
    :param keep: folder that keeps the version in use for the next start.
    :param key, open: see the settings of `security`.
    :raises SettingError: the network reaches other machines, without a key and without consent.
    """
    options = ReaderOptions(server, robot, AccessConfig(key=key, open=open))
    following = Following(model, options, margin, check,
                          keep=None if keep is None else Path(keep).expanduser())
    try:
        yield following
    finally:
        following.close()
