"""The server as a whole: settings, history, actions, Spark's pipelines and reports."""

from __future__ import annotations

from functools import partial

import msgspec

import holdfast
from holdfast.model.settings import Settings
from holdfast.server.actions import Actions
from holdfast.server.auth import Principal
from holdfast.server.handles import Handles
from holdfast.server.history import Recorder, Spans, history
from holdfast.server.limits import Limits
from holdfast.server.pipelines import pipelines, report, reports
from holdfast.telemetry.observe import unobserved
from holdfast.wire import shapes as s


class Overview:
    def __init__(
        self,
        handles: Handles,
        settings: Settings,
        limits: Limits,
        *,
        has_keys: bool,
        recorder: Recorder,
        spans: Spans,
        actions: Actions,
    ) -> None:
        self._handles = handles
        self._at = handles.context
        self._settings = settings
        self._limits = limits
        self._has_keys = has_keys
        self._recorder = recorder
        self._spans = spans
        self._actions = actions

    def sweep(self, ask: s.NoAsk) -> s.SweptDoc:
        return s.SweptDoc(*msgspec.structs.astuple(self._handles.hf.sweep()))

    def get_settings(self, ask: s.NoAsk) -> s.SettingsDoc:
        own = self._settings
        return s.SettingsDoc(
            version=holdfast.__version__,
            store=type(unobserved(self._at.store)).__name__.removesuffix("Store").lower(),
            auth=self._has_keys,
            overdue_check_interval_ms=own.overdue_check_interval_ms,
            requeue_batch_size=own.requeue_batch_size,
            partition_lease_ms=own.partition_lease_ms,
            partition_renew_ms=own.partition_renew_ms,
            partition_rebalance_ms=own.partition_rebalance_ms,
            policy=s.PolicyDoc.of(self._at.policy),
            limits={
                name: float(value) for name, value in msgspec.structs.asdict(self._limits).items()
            },
            now=self._at.clock.now(),
        )

    def get_identity(self, ask: s.NoAsk, who: Principal) -> s.IdentityDoc:
        auth = self._has_keys
        return s.IdentityDoc(who.id, who.name, sorted(who.rights), list(who.queues), auth)

    def get_history(self, ask: s.HistoryAsk, who: Principal) -> s.HistoryDoc:
        if ask.queue is not None:
            self._handles.existing(ask.queue)
        now = self._at.clock.now()
        return history(ask, self._recorder, self._spans, partial(who.may, "read"), now)

    def list_actions(self, ask: s.ActionsAsk, who: Principal) -> s.ActionsDoc:
        return self._actions.list(ask, who)

    def list_pipelines(self, ask: s.NoAsk, who: Principal) -> s.PipelinesDoc:
        return pipelines(self._at, partial(who.may, "read"))

    def list_reports(self, ask: s.ReportsAsk) -> s.ReportsDoc:
        return reports(self._at, ask.limit)

    def get_report(self, ask: s.ReportIdAsk) -> s.ReportDoc:
        return report(self._at, ask.id)
