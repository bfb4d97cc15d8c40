"""What `auto` keeps from answer to answer: the answers, the background, and what passes cost."""

from collections.abc import Callable
from copy import copy

from ngtcli.config import Settings
from ngtcli.decoding.calibration import calibrate, padded, remembered_costs
from ngtcli.decoding.model import TargetModel
from ngtcli.drafting.background.loaded import Background
from ngtcli.drafting.costs import SHORT, Costs, StoredCurve, costs_of
from ngtcli.drafting.pool import TOKENS, Pool, load_pool, pool_path, save_pool
from ngtcli.system.files import DamagedFileError
from ngtcli.words import reason_of

Notify = Callable[[str], None]


class PassCosts:
    """What passes of a model cost on its device; `known` is None until they are loaded.

    With `stored` they are read from the cache and stored there.
    """

    def __init__(self, model: TargetModel, stored: bool, status: Notify) -> None:
        self._model, self._status = model, status
        self.known: Costs | None = None
        self._trial = remembered_costs(model) if stored else None

    def load(self, measure: bool) -> Costs | None:
        """The costs: known, or read, or else measured now and stored, unless not to `measure`.

        None for a model that decodes without drafts, and where nothing is known of its costs.
        """
        if self.known is None and self._model.takes_drafts:
            found = self._found() if measure else self._trial and self._trial.load()
            self.known = costs_of(found, padded(self._model)) if found else None
        return self.known

    def _found(self) -> dict[int, StoredCurve]:
        def make() -> dict[int, StoredCurve]:
            self._status("Measuring what a pass costs …")
            curve = calibrate(self._model)
            # A machine that was busy is measured again; the quicker of both is nearer to the truth.
            before = self._trial.load() if self._trial else None
            if before is not None and SHORT in before:
                curve = curve.quickest(before[SHORT].measured)
            return Costs({SHORT: curve}).stored()

        return self._trial.find(make) if self._trial else make()

    def save(self) -> None:
        """Store what is known."""
        if self.known is not None and self._trial is not None:
            self._trial.save(self.known.stored())


class AutoMemory:
    """The pool of earlier answers of a model, the background, and the costs of its passes.

    `costs` and `pool` are None until `load`, and after it where the settings switch them off.
    With `persist` they are kept in files of the cache folder. Without, nothing is written, and only
    the background is read: what else runs on the machine has no part in a measurement.
    """

    def __init__(
        self, model: TargetModel, settings: Settings, persist: bool, status: Notify, warn: Notify
    ) -> None:
        self._model, self._persist = model, persist
        self._status, self._warn = status, warn
        self._passes = PassCosts(model, persist, status)
        self._path = pool_path(model.tokenizer.fingerprint, settings.model.model)
        self._begin(settings)

    def _begin(self, settings: Settings) -> None:
        self._settings = settings
        self.costs: Costs | None = None
        self.pool: Pool | None = None
        self.background = Background(
            settings.drafting.background,
            self._model.tokenizer,
            self._model.vocabulary,
            model=settings.model.model,
            persist=self._persist,
            status=self._status,
            warn=self._warn,
        )

    def with_settings(self, settings: Settings) -> "AutoMemory":
        """One for other settings of the model, without answers; costs and unstored counts stay."""
        other = copy(self)
        other._begin(settings)
        if not self._persist and settings.drafting.background == self._settings.drafting.background:
            other.background = self.background
        return other

    def load(self) -> None:
        """Read what is stored of costs and pool, and measure costs where none are."""
        self.costs = self._passes.load(self._settings.drafting.calibrate)
        self.pool = self.pool or (self._read_pool() if self._persist else self.empty_pool())

    def empty_pool(self) -> Pool | None:
        """A new pool without answers; None where the settings want none."""
        return (
            Pool(TOKENS, self._settings.drafting.pool_documents)
            if self._settings.drafting.pool
            else None
        )

    def _read_pool(self) -> Pool | None:
        if not self._settings.drafting.pool:
            return None
        try:
            quotes = self._settings.drafting.pool_documents
            return load_pool(self._path, self._model.vocabulary, TOKENS, quotes)
        except DamagedFileError as error:
            self._warn(f"the pool of earlier answers is started again: {error}")
            return self.empty_pool()

    def save(self) -> None:
        """Store the new answers of the pool, and the costs as steps have refined them."""
        try:
            if self.pool is not None and self._persist:
                save_pool(self._path, self.pool, self._settings.model.model, self._model.vocabulary)
            elif self.pool is not None:
                self.pool.new.clear()
        except OSError as error:
            self._warn(f"the pool of earlier answers is not stored: {reason_of(error)}")
        self._passes.save()
