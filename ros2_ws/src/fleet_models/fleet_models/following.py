"""Take up what a fleet learns: `follow(model)` for a program's own loop, `Follower` for nodes."""

from __future__ import annotations

import copy
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fleet_env.durable import finite
from fleet_env.settings.fleet import AccessConfig
from fleet_env.versions import Version, read_apart, write_apart

from .errors import FollowError
from .fetch import Fetched
from .local import LOCAL, LocalReader
from .reader import Reader, ReaderOptions
from .taking import MARGIN, Check, Use, checked, disapproval, refusal, tensors_of
from .wire import Announcement

if TYPE_CHECKING:
    from torch import Tensor, nn

# Seconds in which the owner of a version that was prepared can take it up before the next one is
# prepared. Without them, versions that come faster than they are prepared would never be taken.
GRACE = 10.0

# Held while a model is traced, and while one is read or copied: a trace gives a model fake tensors
# for its duration, and PyTorch patches itself, so that there is one trace at a time.
TRACING = threading.Lock()

# Makes of a model's new tensors what can be put in the place of the present model.
Prepare = Callable[[dict[str, 'Tensor']], Any]


class Ready(NamedTuple):
    """A version that was fetched and checked. ``prepared``: what `Prepare` has made of it."""

    version: Version
    state: dict[str, Tensor]
    prepared: Any
    checked: float
    content: bytes


@dataclass
class FollowOptions(ReaderOptions):
    """What a `Follower` follows, and what it takes up.

    ``server``: namespace of the fleet; `local`: the worker of this robot; empty: nothing is
    followed. ``margin``: a version may be so much less accurate (0 to 1) than the one in use.
    ``check``: measures a copy of the model with the new weights, see `taking.Check`. ``keep``:
    folder that keeps the version in use, so that a robot that starts without a link begins with it;
    None: none.
    """

    server: str = ''
    margin: float = MARGIN
    check: Check | None = None
    keep: Path | None = None


class Follower:
    """Fetches and checks the versions of a fleet in a thread; its owner takes them up when it can.

    :param model: a model of the fleet's task; only its names, shapes and types are read.
    :param prepare: called in the thread with the new tensors; a FollowError refuses the version.
    """

    def __init__(self, model: nn.Module, options: FollowOptions, prepare: Prepare | None = None
                 ) -> None:
        if not 0 <= options.margin <= 1:
            raise ValueError(f'margin must be 0 to 1, such as {MARGIN}, got {options.margin}')
        self._model, self._margin, self._check = model, options.margin, options.check
        self._prepare, self._keep = prepare, options.keep
        self._use, self._since = Use(), math.nan
        self._refused = ''          # why the last version that was fetched was not taken
        self._ready: Ready | None = None
        self._changed = threading.Condition()
        self._fetched: Fetched | None = None     # to be examined
        self._to_keep: Ready | None = None
        self._keeping = threading.Lock()         # held while a version is written
        self._unkept = ''           # why the version in use cannot be kept
        self._closed = False
        kept = self._read_kept()
        if kept is not None:
            self._examine(kept[0], kept[1], True)
        self._reader: Reader | LocalReader
        if options.server == LOCAL:
            self._reader = LocalReader(options.robot, self._refusal, self._on_fetched)
        else:
            self._reader = Reader(options, self._refusal, self._on_fetched, self.says)
        if kept is not None:
            self._reader.fetch.know(kept[1])
        self._examining = threading.Thread(target=self._examine_all, name='examine', daemon=True)
        self._examining.start()

    # -- for the owner -----------------------------------------------------------------------------

    @property
    def ready(self) -> Ready | None:
        """The version to take up now; None: the present one stays."""
        ready, newest = self._ready, self._reader.fetch.newest
        if ready is not None and newest is not None and newest.pinned \
                and newest.version.digest != ready.version.digest:
            return None     # a person wants another one
        return ready

    def taken(self, ready: Ready) -> None:
        """Note that a version is in use from now on."""
        with self._changed:
            self._use, self._since = Use(ready.version, ready.checked), time.monotonic()
            self._refused = ''
            if self._ready is ready:
                self._ready = None
            if self._keep is not None:
                self._to_keep = ready
            self._changed.notify_all()
        self._reader.fetch.used = ready.version.digest
        self._reader.say()

    def refuse(self, ready: Ready, why: str) -> None:
        """Note that a version cannot be taken up after all."""
        with self._changed:
            self._refused = f'version {ready.version.number}: {why}'
            if self._ready is ready:
                self._ready = None
            self._changed.notify_all()
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
    def reason(self) -> str:
        """Why the newest version is not in use, or cannot be kept; empty if all is well."""
        newest, fetch = self._reader.fetch.newest, self._reader.fetch
        if newest is not None and self._use.version is not None \
                and newest.version.digest == self._use.version.digest:
            return self._unkept
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
            self._changed.wait_for(lambda: self._closed or self.ready is not None, seconds)
        return self.ready is not None

    def close(self, patience: float = 0.0) -> None:
        """Follow no longer; what is in use stays.

        ``patience``: seconds to wait for a version that is being examined. A program that ends
        while a thread computes is aborted.
        """
        self._reader.close()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._examining.join(patience)
        self._write_kept()

    # -- the reader's thread, and one that examines, because a check may take long -----------------

    @property
    def _best(self) -> Use:
        """The version that will be in use soon, or is in use."""
        ready = self._ready
        return self._use if ready is None else Use(ready.version, ready.checked)

    def _refusal(self, what: Announcement) -> str:
        return '' if what.pinned else refusal(what.version, self._best, self._margin)

    def _on_fetched(self, fetched: Fetched) -> None:
        with self._changed:
            self._fetched = fetched     # instead of one that still waits
            self._changed.notify_all()

    def _examine_all(self) -> None:
        while self._examine_next():     # each in a frame of its own, which holds the version
            pass

    def _examine_next(self) -> bool:
        """Wait for a version that is to be kept or examined; return whether this goes on."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._fetched is not None
                                   or self._to_keep is not None)
            fetched, self._fetched = self._fetched, None
            if self._closed:
                return False
        self._write_kept()
        if fetched is not None:
            what = fetched.announcement
            self._examine(what.version, fetched.content, what.pinned)
            self._reader.say()
        return True

    def _examine(self, version: Version, content: bytes, pinned: bool) -> None:
        """Check a version whose file is here; offer it to the owner, or say why not."""
        try:
            with TRACING:
                state = tensors_of(content, self._model)
            found = math.nan
            if self._check is None:
                self._try(state)
            else:
                found = checked(self._check, with_state(self._model, state))
            with self._changed:
                if self._prepare is not None:   # it may close what it has prepared before
                    self._changed.wait_for(lambda: self._ready is None or self._closed, GRACE)
                    self._ready = None
                self._compare(version, found, pinned)
            prepared = None if self._prepare is None else self._prepare(state)
        except Exception as error:     # the model, or what is prepared of it, can raise anything
            if self._closed:
                return
            why = str(error) if isinstance(error, FollowError) else \
                f'{type(error).__name__}: {str(error)[:300]}'
            with self._changed:
                self._refused = f'version {version.number} is not taken: {why}'
            return
        with self._changed:
            self._ready = Ready(version, state, prepared, found, content)
            self._refused = ''
            self._changed.notify_all()

    def _try(self, state: dict[str, Tensor]) -> None:
        """Raise FollowError if the owner will fail to take up these tensors."""

    def _compare(self, version: Version, found: float, pinned: bool) -> None:
        """Compare a version with the best now: it may be another one than at its announcement.

        A person's choice counts more than an accuracy.

        :raises FollowError: the version is worse.
        """
        why = '' if pinned else refusal(version, self._best, self._margin)
        if not (why or pinned or self._check is None):
            why = disapproval(found, self._best, self._margin)
        if why:
            raise FollowError(why)

    # -- the version that is kept ------------------------------------------------------------------

    def _read_kept(self) -> tuple[Version, bytes] | None:
        return None if self._keep is None else read_apart(self._keep)

    def _write_kept(self) -> None:
        """Keep the version in use if it is not kept yet; the owner need not wait for a disk."""
        with self._keeping:
            with self._changed:
                ready, self._to_keep = self._to_keep, None
            if ready is None or self._keep is None:
                return
            try:
                write_apart(self._keep, ready.version, ready.content)
                self._unkept = ''
            except OSError as error:
                self._unkept = f'{self._keep} cannot keep the version in use: {error.strerror}'


class Replacing(Follower):
    """A model that is replaced between two inferences: each version is an object of its own.

    So an inference that runs in another thread meanwhile ends with the version that it began with.
    """

    def __init__(self, model: nn.Module, options: FollowOptions) -> None:
        self._present, self._taking = model, threading.Lock()
        super().__init__(model, options, lambda state: with_state(self._present, state))

    def current(self) -> nn.Module:
        """Return the model to use for the next inference: the newest version that is ready."""
        if self.ready is not None:
            with self._taking:
                if (ready := self.ready) is not None:
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
        ready = self.ready
        if ready is None:
            return False
        try:
            self._model.load_state_dict(ready.state)
        except Exception as error:   # a module of a user may load its state in its own way
            self.refuse(ready, _misfit(error))
            return False
        self.taken(ready)
        return True

    def _try(self, state: dict[str, Tensor]) -> None:
        try:
            twin = _copied(self._model)
        except FollowError:     # only `take` can try it
            return
        _load(twin, state)      # a failure in `take` would leave a half


def with_state(model: nn.Module, state: dict[str, Tensor]) -> nn.Module:
    """Return a copy of a model with other tensors.

    :raises FollowError: the model cannot be copied, or does not load them.
    """
    twin = _copied(model)
    _load(twin, state)
    return twin


def _copied(model: nn.Module) -> nn.Module:
    try:
        with TRACING:
            return copy.deepcopy(model)
    except Exception as error:   # the objects of a model can raise anything
        raise FollowError(f'the model cannot be copied: {type(error).__name__}: '
                          f'{str(error)[:300]}') from error


def _load(model: nn.Module, state: dict[str, Tensor]) -> None:
    try:
        model.load_state_dict(state)
    except Exception as error:   # a module of a user may load its state in its own way
        raise FollowError(_misfit(error)) from error


def _misfit(error: Exception) -> str:
    return f'it does not fit the model: {str(error)[:300]}'


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
    :param server: namespace of the fleet; or `local`: the model that the worker of ``robot`` on
        this machine trains, with the rows that it has.
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
    following = Following(model, FollowOptions(
        server, robot, AccessConfig(key=key, open=open), margin=margin, check=check,
        keep=None if keep is None else Path(keep).expanduser()))
    try:
        yield following
    finally:
        following.close()
