"""The memory of `auto` between answers: earlier answers, background, costs of forward passes."""

from copy import copy

from ngtcli.config import Settings
from ngtcli.decoding.calibration import calibrate, padded, remembered_costs
from ngtcli.decoding.model import TargetModel
from ngtcli.drafting.background.loaded import Background
from ngtcli.drafting.costs import SHORT, Costs, StoredCurve, costs_of
from ngtcli.drafting.pool import TOKENS, Pool, load_pool, pool_path, save_pool
from ngtcli.system import reporting
from ngtcli.system.files import DamagedFileError
from ngtcli.words import reason_of


class PassCosts:
    """The costs of a model's forward passes on its device.

    Args:
        model: The model.
        stored: Whether costs are read from the cache and stored there.
    """

    def __init__(self, model: TargetModel, stored: bool) -> None:
        self._model = model
        self._reporter = reporting.current()
        self._costs: Costs | None = None  # until they are loaded
        self._trial = remembered_costs(model) if stored else None

    def load(self, measure: bool) -> Costs | None:
        """Return the costs: loaded earlier, or read from the cache, or measured and stored.

        Args:
            measure: Measure them if they are not in the cache.

        Returns:
            None if the model decodes without drafts, or if the costs are unknown.
        """
        if self._costs is not None or not self._model.takes_drafts:
            return self._costs
        curves: dict[int, StoredCurve] | None = None
        if measure:
            curves = self._read_or_measure()
        elif self._trial is not None:
            curves = self._trial.load()
        if curves:
            self._costs = costs_of(curves, padded(self._model))
        return self._costs

    def _read_or_measure(self) -> dict[int, StoredCurve]:
        if self._trial is None:
            return self._measure()
        return self._trial.find(self._measure)

    def _measure(self) -> dict[int, StoredCurve]:
        self._reporter.status("Measuring what a forward pass costs …")
        curve = calibrate(self._model)
        # A machine that was busy is measured again; the faster of two measurements is truer.
        before = self._trial.load() if self._trial is not None else None
        if before is not None and SHORT in before:
            curve = curve.quickest(before[SHORT].measured)
        return Costs({SHORT: curve}).stored()

    def save(self) -> None:
        """Store the costs if they are loaded."""
        if self._costs is not None and self._trial is not None:
            self._trial.save(self._costs.stored())


class AutoMemory:
    """The pool of earlier answers of a model, the background, and the costs of forward passes.

    Attributes:
        costs: The costs of forward passes; None before `load`, or if they are unknown.
        pool: Earlier answers; None before `load`, or if the settings disable it.
        background: General text to draft from.

    Args:
        model: The model.
        settings: The settings, which say which of them are used.
        persist: Read and write files. Otherwise nothing is written, and only the background is
            read: earlier answers must not affect a measurement.
    """

    def __init__(self, model: TargetModel, settings: Settings, persist: bool) -> None:
        self._model = model
        self._persist = persist
        self._reporter = reporting.current()
        self._passes = PassCosts(model, persist)
        self._path = pool_path(model.tokenizer.fingerprint, settings.model.model)
        self._begin(settings)

    def _begin(self, settings: Settings) -> None:
        self._settings = settings
        self.costs: Costs | None = None
        self.pool: Pool | None = None
        with reporting.reporting_to(self._reporter):  # also where a request has other settings
            self.background = Background(
                settings.drafting.background,
                self._model.tokenizer,
                self._model.vocabulary,
                model=settings.model.model,
                persist=self._persist,
            )

    def with_settings(self, settings: Settings) -> "AutoMemory":
        """Return a memory for other settings, without earlier answers.

        It shares the costs, and the background if that is not stored.
        """
        other = copy(self)
        other._begin(settings)
        if not self._persist and settings.drafting.background == self._settings.drafting.background:
            other.background = self.background
        return other

    def load(self) -> None:
        """Read the costs and the pool; measure the costs if they are unknown."""
        self.costs = self._passes.load(self._settings.drafting.calibrate)
        if not self.pool:
            self.pool = self._read_pool() if self._persist else self.empty_pool()

    def empty_pool(self) -> Pool | None:
        """Return a new pool without answers, None if the settings disable it."""
        if not self._settings.drafting.pool:
            return None
        return Pool(TOKENS, self._settings.drafting.pool_documents)

    def _read_pool(self) -> Pool | None:
        if not self._settings.drafting.pool:
            return None
        try:
            quotes = self._settings.drafting.pool_documents
            return load_pool(self._path, self._model.vocabulary, TOKENS, quotes)
        except DamagedFileError as error:
            self._reporter.warn(f"the pool of earlier answers is started again: {error}")
            return self.empty_pool()

    def save(self) -> None:
        """Store the new answers of the pool, and the costs, which steps have refined."""
        try:
            if self.pool is not None and self._persist:
                save_pool(self._path, self.pool, self._settings.model.model, self._model.vocabulary)
            elif self.pool is not None:
                self.pool.new.clear()
        except OSError as error:
            self._reporter.warn(f"the pool of earlier answers was not stored: {reason_of(error)}")
        self._passes.save()
