//! A log over stores that can fail, and what it was told: what is read later is compared with that.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pulsegate::ledger::{LedgerId, LedgerStore, MemoryStore};
use pulsegate::managed_ledger::{
    EntryCache, LogContext, LogEnd, LogEvent, LogRead, LogSettings, ManagedLedger, Position,
    ReadBudget, ReadError,
};
use pulsegate::metadata::{LocalMetadata, LocalPath, MemoryMetadata, paths};
use pulsegate::naming::TopicName;

use crate::stores::{FailingWriters, Faults, FaultyLedgers, FaultyMetadata, StillClock};

pub(crate) struct World {
    pub(crate) context: LogContext,
    pub(crate) ledgers: Arc<dyn LedgerStore>,
    pub(crate) metadata: LocalMetadata,
    pub(crate) faults: Faults,
    pub(crate) clock: Arc<StillClock>,
    pub(crate) settings: LogSettings,
    pub(crate) topic: TopicName,
    pub(crate) path: LocalPath,
    pub(crate) log: Option<ManagedLedger>,
    pub(crate) told: Told,
}

/// What was appended, and what of it was told to be where.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// All that is known to be in the log, in order. What was trimmed may be among it.
    pub(crate) confirmed: Vec<(Position, Bytes)>,
    /// Taken and not told of, by number.
    pub(crate) pending: BTreeMap<u64, Bytes>,
    /// Told to be refused because the log ended: it may be there or not.
    pub(crate) unsure: Vec<Bytes>,
    /// Everything up to here may be trimmed.
    pub(crate) consumed: Option<Position>,
    next: u64,
}

pub(crate) const PLENTY: ReadBudget = ReadBudget {
    entries: 7,
    bytes: 1000,
};

impl World {
    pub(crate) fn in_memory(settings: LogSettings, cache: u64) -> Self {
        let store: Arc<dyn LedgerStore> = Arc::new(MemoryStore::default());
        let faults = Faults::default();
        let ledgers = FailingWriters(FaultyLedgers {
            store: Arc::clone(&store),
            faults: faults.clone(),
        });
        Self::over(store, Arc::new(ledgers), faults, settings, cache)
    }

    pub(crate) fn over(
        store: Arc<dyn LedgerStore>,
        faulty: Arc<dyn LedgerStore>,
        faults: Faults,
        settings: LogSettings,
        cache: u64,
    ) -> Self {
        let clock = Arc::new(StillClock::default());
        let metadata = Arc::new(MemoryMetadata::new(Arc::clone(&clock) as _).connect());
        let faulty_metadata = FaultyMetadata {
            store: Arc::clone(&metadata) as _,
            faults: faults.clone(),
        };
        let context = LogContext {
            ledgers: faulty,
            metadata: LocalMetadata::new(Arc::new(faulty_metadata)),
            cursors: None,
            clock: Arc::clone(&clock) as _,
            cache: EntryCache::new(cache),
        };
        let topic = TopicName::parse("persistent://t/n/x").expect("topic");
        Self {
            context,
            ledgers: store,
            metadata: LocalMetadata::new(metadata),
            faults,
            clock,
            settings,
            path: paths::managed_ledger(&topic).expect("path"),
            topic,
            log: None,
            told: Told::default(),
        }
    }

    pub(crate) fn log(&mut self) -> &mut ManagedLedger {
        self.log.as_mut().expect("open")
    }

    /// Opens the log; `false`: the process ended meanwhile.
    pub(crate) async fn open(&mut self) -> bool {
        let opening = ManagedLedger::open(&self.context, &self.topic, self.settings.clone(), true);
        match until_stuck(opening).await {
            Some(log) => {
                self.log = Some(log.expect("opened"));
                true
            }
            None => {
                assert!(self.faults.has_crashed(), "nothing but a crash stops it");
                false
            }
        }
    }

    /// Appends so many entries; whether they were taken.
    pub(crate) fn append(&mut self, count: usize) -> bool {
        let next = self.told.next;
        self.told.next += count as u64;
        let entries: Vec<Bytes> = (next..next + count as u64).map(entry).collect();
        let Ok(numbers) = self.log().append(&entries) else {
            return false;
        };
        assert_eq!(numbers.end - numbers.start, count as u64);
        self.told.pending.extend(numbers.zip(entries));
        true
    }

    /// Waits until nothing is on its way, or the process has ended; takes in what was told.
    pub(crate) async fn settle(&mut self) {
        let log = self.log.as_mut().expect("open");
        if until_stuck(log.settled()).await.is_none() {
            assert!(
                self.faults.has_crashed(),
                "nothing but a crash stops it: {log:?}"
            );
        }
        self.take_events();
    }

    pub(crate) fn take_events(&mut self) {
        while let Some(event) = self.log().try_event() {
            match event {
                LogEvent::Confirmed { numbers, first } => {
                    for (number, place) in numbers.zip(0..) {
                        let payload = self.told.pending.remove(&number).expect("told once");
                        let before = self.told.pending.keys().next();
                        assert!(before.is_none_or(|before| *before > number), "in order");
                        let at = Position::new(first.ledger_id, first.entry_id + place);
                        let last = self.told.confirmed.last().map(|(at, _)| *at);
                        assert!(last < Some(at), "{last:?} {at}");
                        self.told.confirmed.push((at, payload));
                    }
                    let last = self.told.confirmed.last().map(|(at, _)| *at);
                    assert!(last <= Some(self.log().view().last_confirmed()));
                }
                LogEvent::Refused { numbers, error } => {
                    for number in numbers {
                        let payload = self.told.pending.remove(&number).expect("told once");
                        if matches!(
                            error,
                            pulsegate::managed_ledger::AppendError::Ended(
                                LogEnd::Fenced | LogEnd::Failed(_)
                            )
                        ) {
                            self.told.unsure.push(payload);
                        }
                    }
                }
                LogEvent::Properties { .. } | LogEvent::NotTerminated(_) | LogEvent::Ended(_) => {}
            }
        }
    }

    /// The process is gone and starts again.
    pub(crate) async fn crash(&mut self) {
        self.log = None;
        self.faults.restart();
        let pending = std::mem::take(&mut self.told.pending);
        self.told.unsure.extend(pending.into_values());
        assert!(self.open().await);
        self.reconcile().await;
    }

    /// What was told is there; behind it may be more of what was taken, in order, and nothing else.
    pub(crate) async fn reconcile(&mut self) {
        self.settle().await;
        let found = self.read_all().await;
        let known = self.expect_suffix(&found);
        let mut unsure = std::mem::take(&mut self.told.unsure).into_iter();
        for (at, payload) in found.get(known..).unwrap_or_default() {
            assert!(
                unsure.any(|taken| taken == payload),
                "{payload:?} at {at} was never taken, or not in this order"
            );
            self.told.confirmed.push((*at, payload.clone()));
        }
        self.assert_no_leak().await;
    }

    /// All that is confirmed can be read, but for what may be trimmed, and nothing else.
    pub(crate) async fn check(&mut self) {
        let found = self.read_all().await;
        let known = self.expect_suffix(&found);
        assert_eq!(known, found.len(), "more than was told");
        let view = self.log().view();
        let count = view.entries_between(Position::before(i64::MIN), view.last_confirmed());
        assert_eq!(count, found.len() as u64);
        let stats = self.log().stats();
        assert_eq!(stats.last_confirmed, view.last_confirmed());
        assert!(stats.entries >= i64::try_from(found.len()).expect("few"));
    }

    /// How many of the entries were told of. They are all told ones from the first that was not trimmed on.
    fn expect_suffix(&self, found: &[(Position, Bytes)]) -> usize {
        let told = &self.told.confirmed;
        let first = found.first().map(|(at, _)| *at);
        let from = match first {
            Some(first) => told.partition_point(|(at, _)| *at < first),
            None => told.len(),
        };
        let (trimmed, there) = told.split_at(from);
        if let Some((last, _)) = trimmed.last() {
            assert!(Some(*last) <= self.told.consumed, "{last} was not consumed");
        }
        assert_eq!(found.get(..there.len()).unwrap_or(found), there);
        there.len()
    }

    /// All entries from the first on, as cursors read them.
    pub(crate) async fn read_all(&mut self) -> Vec<(Position, Bytes)> {
        let reader = Arc::clone(self.log().reader());
        let mut found: Vec<(Position, Bytes)> = Vec::new();
        let mut next = reader.view().first_position();
        loop {
            let view = reader.view();
            let run = view.run_from(next, 100);
            if run.entries.is_empty() {
                assert!(!view.contains(next));
                let further = view.next_valid(next);
                if !view.contains(further) {
                    return found;
                }
                next = further;
                continue;
            }
            match reader.read(&[run], PLENTY).await {
                Ok(entries) => {
                    assert!(!entries.is_empty() && entries.len() <= PLENTY.entries);
                    for entry in entries {
                        assert_eq!(entry.position, next);
                        found.push((entry.position, entry.payload));
                        next = reader.view().next_valid(entry.position);
                    }
                }
                Err(ReadError::Trimmed(at)) => {
                    assert_eq!(at, next);
                    next = reader.view().next_valid(next);
                }
                Err(error) => panic!("{next}: {error}"),
            }
        }
    }

    /// There are no ledgers but those that are listed, and none is listed that is not there.
    pub(crate) async fn assert_no_leak(&mut self) {
        let listed: Vec<u64> = match &self.log {
            Some(log) => {
                let ledgers = log.stats().ledgers.into_iter();
                let ids = ledgers.map(|ledger| u64::try_from(ledger.ledger_id).expect("id"));
                ids.collect()
            }
            None => Vec::new(),
        };
        assert_eq!(self.ledgers_there().await, listed);
    }

    pub(crate) async fn ledgers_there(&self) -> Vec<u64> {
        let found = self
            .ledgers
            .find("pulsar/managed-ledger", b"t/n/persistent/x");
        let found = found.await.expect("found").into_iter();
        found.map(|(LedgerId(id), _)| id).collect()
    }
}

/// What a future comes to; `None` when nothing happens any more.
pub(crate) async fn until_stuck<T>(future: impl Future<Output = T>) -> Option<T> {
    // On paused time this passes only when there is nothing else to do.
    tokio::time::timeout(Duration::from_secs(3600), future)
        .await
        .ok()
}

pub(crate) fn entry(number: u64) -> Bytes {
    let filler = "x".repeat(usize::try_from(number % 13).expect("small"));
    Bytes::from(format!("entry {number} {filler}"))
}

/// Ledgers of three entries.
pub(crate) fn small_ledgers() -> LogSettings {
    LogSettings {
        max_entries: 3,
        min_rollover_millis: 0,
        keep_consumed_bytes: 0,
        ..LogSettings::default()
    }
}

pub(crate) fn on_paused_time(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("runtime");
    tokio::task::LocalSet::new().block_on(&runtime, test);
}
