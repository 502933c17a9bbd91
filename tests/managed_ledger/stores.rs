//! Stores that fail and stop when they are told to.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use pulsegate::ledger::{
    LedgerError, LedgerFuture, LedgerId, LedgerOptions, LedgerReader, LedgerStore, LedgerWriter,
    Progress, Sealed,
};
use pulsegate::metadata::{
    Clock, CreateMode, Created, Expected, MetadataError, MetadataStore, Node, NodePath, Session,
    Stat, StoreFuture, Version, Watch, WatchScope,
};
use tokio::sync::watch;

/// What is to go wrong. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Faults {
    plan: Arc<Mutex<Plan>>,
}

#[derive(Debug, Default)]
struct Plan {
    /// Changing calls so far, of both stores.
    calls: u64,
    /// At this call the process ends: nothing is answered any more.
    crash: Option<(u64, Moment)>,
    crashed: bool,
    /// The next change of metadata is answered with this.
    metadata: Option<(MetadataError, Moment)>,
    /// The next ledger is not made.
    create: Option<LedgerError>,
    writer: Option<WriterFault>,
}

/// Whether what was asked for is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    NotDone,
    Done,
}

/// A writer fails.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WriterFault {
    /// It stores so many entries more,
    pub(crate) stored: usize,
    /// and does not tell of so many of the last of them.
    pub(crate) untold: u64,
}

impl Faults {
    pub(crate) fn calls(&self) -> u64 {
        self.plan.lock().calls
    }

    /// The process ends at the call that is so many calls further.
    pub(crate) fn crash_in(&self, calls: u64, moment: Moment) {
        let mut plan = self.plan.lock();
        plan.crash = Some((plan.calls + calls, moment));
    }

    pub(crate) fn has_crashed(&self) -> bool {
        self.plan.lock().crashed
    }

    /// The next process begins; nothing goes wrong.
    pub(crate) fn restart(&self) {
        let mut plan = self.plan.lock();
        let calls = plan.calls;
        *plan = Plan {
            calls,
            ..Plan::default()
        };
    }

    pub(crate) fn fail_metadata(&self, error: MetadataError, moment: Moment) {
        self.plan.lock().metadata = Some((error, moment));
    }

    pub(crate) fn fail_create(&self, error: LedgerError) {
        self.plan.lock().create = Some(error);
    }

    pub(crate) fn fail_writer(&self, fault: WriterFault) {
        self.plan.lock().writer = Some(fault);
    }

    /// Does a change, or not.
    async fn change<T>(&self, change: impl Future<Output = T>) -> T {
        let crash = {
            let mut plan = self.plan.lock();
            let call = plan.calls;
            plan.calls += 1;
            if plan.crashed {
                Some(Moment::NotDone)
            } else {
                let now = plan.crash.filter(|(at, _)| *at == call);
                plan.crashed = now.is_some();
                now.map(|(_, moment)| moment)
            }
        };
        if crash == Some(Moment::NotDone) {
            std::future::pending::<()>().await;
        }
        let result = change.await;
        if crash.is_some() {
            std::future::pending::<()>().await;
        }
        result
    }

    async fn change_metadata<T>(
        &self,
        change: impl Future<Output = Result<T, MetadataError>>,
    ) -> Result<T, MetadataError> {
        let fault = self.plan.lock().metadata.take();
        self.change(async {
            match fault {
                Some((error, Moment::NotDone)) => Err(error),
                Some((error, Moment::Done)) => {
                    let _ = change.await;
                    Err(error)
                }
                None => change.await,
            }
        })
        .await
    }
}

/// A store of ledgers with faults.
#[derive(Debug, Clone)]
pub(crate) struct FaultyLedgers {
    pub(crate) store: Arc<dyn LedgerStore>,
    pub(crate) faults: Faults,
}

#[derive(Debug)]
struct FaultyWriter {
    inner: Box<dyn LedgerWriter>,
    faults: Faults,
    own: Option<watch::Sender<Progress>>,
}

impl LedgerStore for FaultyLedgers {
    fn create(&self, options: LedgerOptions) -> LedgerFuture<'_, Box<dyn LedgerWriter>> {
        Box::pin(async move {
            let error = self.faults.plan.lock().create.take();
            let create = async {
                match error {
                    Some(error) => Err(error),
                    None => self.store.create(options).await,
                }
            };
            let inner = self.faults.change(create).await?;
            let writer: Box<dyn LedgerWriter> = Box::new(FaultyWriter {
                inner,
                faults: self.faults.clone(),
                own: None,
            });
            Ok(writer)
        })
    }

    fn open(&self, ledger: LedgerId) -> LedgerFuture<'_, Box<dyn LedgerReader>> {
        self.store.open(ledger)
    }

    fn recover(&self, ledger: LedgerId) -> LedgerFuture<'_, Sealed> {
        Box::pin(self.faults.change(self.store.recover(ledger)))
    }

    fn trim(&self, ledger: LedgerId, first: u64) -> LedgerFuture<'_, ()> {
        self.store.trim(ledger, first)
    }

    fn find<'a>(
        &'a self,
        name: &'a str,
        value: &'a [u8],
    ) -> LedgerFuture<'a, Vec<(LedgerId, LedgerOptions)>> {
        self.store.find(name, value)
    }

    fn delete(&self, ledger: LedgerId) -> LedgerFuture<'_, ()> {
        Box::pin(self.faults.change(self.store.delete(ledger)))
    }
}

impl LedgerWriter for FaultyWriter {
    fn id(&self) -> LedgerId {
        self.inner.id()
    }

    fn append(&mut self, batch: &[Bytes]) -> Result<Range<u64>, LedgerError> {
        if self
            .own
            .as_ref()
            .is_some_and(|own| own.borrow().failed.is_some())
        {
            return Err(LedgerError::WriterFailed);
        }
        let fault = {
            let mut plan = self.faults.plan.lock();
            match &mut plan.writer {
                Some(fault) if fault.stored >= batch.len() => {
                    fault.stored -= batch.len();
                    None
                }
                writer => writer.take(),
            }
        };
        let Some(fault) = fault else {
            return self.tell(batch, 0);
        };
        let stored = self.tell(batch.get(..fault.stored).unwrap_or_default(), fault.untold)?;
        if let Some(own) = &self.own {
            own.send_modify(|progress| progress.failed = Some(LedgerError::WriterFailed));
        }
        Ok(stored.start..stored.start + batch.len() as u64)
    }

    fn progress(&self) -> watch::Receiver<Progress> {
        match &self.own {
            Some(own) => own.subscribe(),
            None => self.inner.progress(),
        }
    }

    fn seal(self: Box<Self>) -> LedgerFuture<'static, Sealed> {
        Box::pin(async move {
            if self
                .own
                .as_ref()
                .is_some_and(|own| own.borrow().failed.is_some())
            {
                return Err(LedgerError::WriterFailed);
            }
            let faults = self.faults.clone();
            faults.change(self.inner.seal()).await
        })
    }
}

impl FaultyWriter {
    fn tell(&mut self, batch: &[Bytes], untold: u64) -> Result<Range<u64>, LedgerError> {
        let range = self.inner.append(batch)?;
        if let Some(own) = &self.own {
            let before = own.borrow().confirmed;
            let confirmed = range.end.checked_sub(1 + untold);
            if confirmed > before {
                own.send_modify(|progress| progress.confirmed = confirmed);
            }
        }
        Ok(range)
    }
}

/// Ledgers over an engine that tells at once: so that the writer can fail, progress is the wrapper's own.
#[derive(Debug, Clone)]
pub(crate) struct FailingWriters(pub(crate) FaultyLedgers);

impl LedgerStore for FailingWriters {
    fn create(&self, options: LedgerOptions) -> LedgerFuture<'_, Box<dyn LedgerWriter>> {
        Box::pin(async move {
            let error = self.0.faults.plan.lock().create.take();
            let create = async {
                match error {
                    Some(error) => Err(error),
                    None => self.0.store.create(options).await,
                }
            };
            let inner = self.0.faults.change(create).await?;
            let writer: Box<dyn LedgerWriter> = Box::new(FaultyWriter {
                inner,
                faults: self.0.faults.clone(),
                own: Some(watch::Sender::new(Progress::default())),
            });
            Ok(writer)
        })
    }

    fn open(&self, ledger: LedgerId) -> LedgerFuture<'_, Box<dyn LedgerReader>> {
        self.0.open(ledger)
    }

    fn recover(&self, ledger: LedgerId) -> LedgerFuture<'_, Sealed> {
        self.0.recover(ledger)
    }

    fn trim(&self, ledger: LedgerId, first: u64) -> LedgerFuture<'_, ()> {
        self.0.trim(ledger, first)
    }

    fn find<'a>(
        &'a self,
        name: &'a str,
        value: &'a [u8],
    ) -> LedgerFuture<'a, Vec<(LedgerId, LedgerOptions)>> {
        self.0.find(name, value)
    }

    fn delete(&self, ledger: LedgerId) -> LedgerFuture<'_, ()> {
        self.0.delete(ledger)
    }
}

/// A metadata store with faults.
#[derive(Debug, Clone)]
pub(crate) struct FaultyMetadata {
    pub(crate) store: Arc<dyn MetadataStore>,
    pub(crate) faults: Faults,
}

impl MetadataStore for FaultyMetadata {
    fn get<'a>(&'a self, path: &'a NodePath) -> StoreFuture<'a, Option<Node>> {
        self.store.get(path)
    }

    fn children<'a>(&'a self, path: &'a NodePath) -> StoreFuture<'a, Vec<String>> {
        self.store.children(path)
    }

    fn put<'a>(
        &'a self,
        path: &'a NodePath,
        value: Bytes,
        expected: Expected,
    ) -> StoreFuture<'a, Stat> {
        Box::pin(
            self.faults
                .change_metadata(self.store.put(path, value, expected)),
        )
    }

    fn create<'a>(
        &'a self,
        path: &'a NodePath,
        value: Bytes,
        mode: CreateMode,
    ) -> StoreFuture<'a, Created> {
        Box::pin(
            self.faults
                .change_metadata(self.store.create(path, value, mode)),
        )
    }

    fn delete<'a>(&'a self, path: &'a NodePath, expected: Option<Version>) -> StoreFuture<'a, ()> {
        Box::pin(
            self.faults
                .change_metadata(self.store.delete(path, expected)),
        )
    }

    fn delete_recursive<'a>(&'a self, path: &'a NodePath) -> StoreFuture<'a, ()> {
        Box::pin(
            self.faults
                .change_metadata(self.store.delete_recursive(path)),
        )
    }

    fn sync<'a>(&'a self, path: &'a NodePath) -> StoreFuture<'a, ()> {
        self.store.sync(path)
    }

    fn watch<'a>(&'a self, path: &'a NodePath, scope: WatchScope) -> StoreFuture<'a, Watch> {
        self.store.watch(path, scope)
    }

    fn session(&self) -> watch::Receiver<Session> {
        self.store.session()
    }
}

/// A clock that stands still until it is moved.
#[derive(Debug, Default)]
pub(crate) struct StillClock(Mutex<i64>);

impl StillClock {
    pub(crate) fn advance(&self, millis: i64) {
        *self.0.lock() += millis;
    }
}

impl Clock for StillClock {
    fn unix_millis(&self) -> i64 {
        1_800_000_000_000 + *self.0.lock()
    }

    fn monotonic(&self) -> std::time::Duration {
        std::time::Duration::from_millis(u64::try_from(*self.0.lock()).expect("forwards"))
    }
}
