//! One run: threads that make load, the phases that they go through together, and the report at the end.
//!
//! Owns threads, clock and phases. What the load is, it does not know: each thread gets a [`LoadThread`] and drives it. First
//! all threads connect, then the load begins everywhere at once; what is measured during the warm-up is not reported.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::measure::{Measured, Meter};
use super::report::{Interval, LatencyFrom, LoadKind, RunMeasures, RunReport};
use super::watch::{ProcessReport, Usage, WatchError, WatchedProcess, own_cpu_seconds};

/// How long a run is and what is measured besides.
#[derive(Debug, Clone)]
pub struct RunPlan {
    /// What the load is.
    pub kind: LoadKind,
    /// From when on its latency counts.
    pub latency_from: LatencyFrom,
    /// Threads that make load, each with connections of its own; at least 1.
    pub threads: usize,
    /// Time at the start of the load that is not reported.
    pub warm_up: Duration,
    /// Length of the load, warm-up included; `None` is until all threads have done their share.
    pub duration: Option<Duration>,
    /// How often progress is told; `None` is never.
    pub stats_interval: Option<Duration>,
    /// Processes under test.
    pub watch: Vec<WatchedProcess>,
}

/// Why a run has no report.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A thread or its runtime could not be started.
    #[error("cannot start a thread")]
    Thread(#[from] std::io::Error),
    /// A process under test is not there.
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// The load could not begin.
    #[error("{0}")]
    Load(LoadError),
    /// A signal came before the load began.
    #[error("ended before the load began")]
    Interrupted,
}

/// Why a thread cannot go on: the text for the user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LoadError(pub String);

/// Time since the program began to measure.
#[derive(Debug, Clone, Copy)]
pub struct RunClock(Instant);

impl RunClock {
    fn start() -> Self {
        Self(Instant::now())
    }

    /// Nanoseconds since the start.
    #[must_use]
    pub fn now(self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// What a thread that makes load has from the run.
#[derive(Debug)]
pub struct LoadThread {
    /// Its number, from 0.
    pub number: usize,
    /// How many there are.
    pub threads: usize,
    /// The clock of the run.
    pub clock: RunClock,
    /// Takes what is measured.
    pub meter: Meter,
    /// Cancelled when the load is to end.
    pub stop: CancellationToken,
    events: mpsc::Sender<ThreadEvent>,
    start: watch::Receiver<Option<u64>>,
}

enum ThreadEvent {
    Connected,
    /// It has done its share and now closes what it has open.
    Finished,
    /// The run is to end: a message failed where that is what was asked for.
    GaveUp,
    Ended(Result<(), LoadError>),
}

impl LoadThread {
    /// Says that everything is connected and waits for the load to begin; returns that time, or `None` when the run ends before.
    pub async fn connected(&mut self) -> Option<u64> {
        self.events.send(ThreadEvent::Connected).await.ok()?;
        let started = async {
            let start = self.start.wait_for(Option::is_some).await.ok()?;
            *start
        };
        self.stop.run_until_cancelled(started).await.flatten()
    }

    /// Says that this thread's share of the load is done: what follows, such as closing, is not measured.
    pub async fn finished(&self) {
        // Nobody waits when the run was given up.
        let _ = self.events.send(ThreadEvent::Finished).await;
    }

    /// Says that the whole run is to end now, for a reason that was measured as a failure.
    pub async fn gave_up(&self) {
        // Nobody waits when the run was given up.
        let _ = self.events.send(ThreadEvent::GaveUp).await;
    }
}

/// Runs `load` on each thread, and tells progress, until the plan says that it is over, `interrupt` completes, or all threads
/// have ended. What the threads measure after that counts in latencies and failures, and not in what was done meanwhile. Not
/// cancel-safe: dropped, the threads go on until they see that nobody waits.
///
/// # Errors
/// When there is nothing to report. A load that fails later ends the run, and the report has it among the failures.
pub async fn run<L, F>(
    plan: &RunPlan,
    load: L,
    interrupt: impl Future<Output = ()>,
    progress: &mut dyn FnMut(Interval<'_>),
) -> Result<RunReport, RunError>
where
    L: Fn(LoadThread) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), LoadError>>,
{
    let clock = RunClock::start();
    let mut threads = Threads::start(plan.threads.max(1), clock, Arc::new(load))?;
    let mut interrupt = std::pin::pin!(interrupt);
    let connected = tokio::select! {
        biased;
        () = &mut interrupt => Err(RunError::Interrupted),
        connected = threads.connected() => connected,
    };
    let measured = match connected {
        Ok(()) => {
            Phases::begin(plan, clock, &mut threads)?
                .follow(plan, &mut threads, interrupt, progress)
                .await
        }
        Err(error) => Err(error),
    };
    threads.end().await;
    Ok(measured?.report(plan, &threads))
}

/// The threads of a run.
struct Threads {
    count: usize,
    running: usize,
    /// Threads that have done their share, ended or not.
    finished: usize,
    meters: Vec<Meter>,
    events: mpsc::Receiver<ThreadEvent>,
    start: watch::Sender<Option<u64>>,
    stop: CancellationToken,
}

impl Threads {
    fn start<L, F>(count: usize, clock: RunClock, load: Arc<L>) -> Result<Self, RunError>
    where
        L: Fn(LoadThread) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), LoadError>>,
    {
        let (sender, events) = mpsc::channel(2 * count);
        let (start, started) = watch::channel(None);
        let stop = CancellationToken::new();
        let mut threads = Self {
            count,
            running: 0,
            finished: 0,
            meters: Vec::new(),
            events,
            start,
            stop,
        };
        for number in 0..count {
            let meter = Meter::default();
            let context = LoadThread {
                number,
                threads: count,
                clock,
                meter: meter.clone(),
                stop: threads.stop.clone(),
                events: sender.clone(),
                start: started.clone(),
            };
            threads.meters.push(meter);
            let load = Arc::clone(&load);
            let thread = thread::Builder::new().name(format!("load-{number}"));
            if let Err(error) = thread.spawn(move || drive(context, &*load)) {
                threads.stop.cancel();
                return Err(error.into());
            }
            threads.running += 1;
        }
        Ok(threads)
    }

    /// Waits until all threads are connected.
    async fn connected(&mut self) -> Result<(), RunError> {
        let mut connected = 0;
        while connected < self.count {
            match self.next().await {
                Some(ThreadEvent::Connected) => connected += 1,
                Some(ThreadEvent::Ended(Err(error))) => return Err(RunError::Load(error)),
                Some(ThreadEvent::Finished | ThreadEvent::GaveUp | ThreadEvent::Ended(Ok(())))
                | None => {
                    return Err(RunError::Load(LoadError(ENDED_EARLY.to_owned())));
                }
            }
        }
        Ok(())
    }

    async fn next(&mut self) -> Option<ThreadEvent> {
        let event = self.events.recv().await;
        if matches!(event, Some(ThreadEvent::Ended(_)) | None) {
            self.running = self.running.saturating_sub(1);
        }
        event
    }

    /// Waits until all threads have done their share, or one gives the run up; returns the first failure. A thread that panicked says nothing, so the
    /// end of all senders is the end as well. Cancel-safe.
    async fn finished(&mut self) -> Result<(), LoadError> {
        while self.finished < self.count {
            match self.next().await {
                Some(ThreadEvent::Ended(Err(error))) => return Err(error),
                Some(ThreadEvent::Finished) => self.finished += 1,
                Some(ThreadEvent::GaveUp) => break,
                // Every thread says that it has finished, unless it was told to end.
                Some(ThreadEvent::Connected | ThreadEvent::Ended(Ok(()))) => {}
                None => return Err(LoadError(ENDED_EARLY.to_owned())),
            }
        }
        Ok(())
    }

    fn take_into(&self, measured: &mut Measured) {
        for meter in &self.meters {
            meter.take_into(measured);
        }
    }

    /// Ends the load and gives the threads a moment for what is on its way, and to close what they have open.
    async fn end(&mut self) {
        self.stop.cancel();
        let all = async { while self.running > 0 && self.next().await.is_some() {} };
        // What has not ended then is left to the end of the process.
        let _ = timeout(END_TIME, all).await;
    }
}

/// What a thread does: the load in a runtime of its own, which is made here because it must not be dropped elsewhere.
fn drive<L, F>(context: LoadThread, load: &L)
where
    L: Fn(LoadThread) -> F,
    F: Future<Output = Result<(), LoadError>>,
{
    let events = context.events.clone();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let ended = match &runtime {
        Ok(runtime) => runtime.block_on(load(context)),
        Err(error) => Err(LoadError(format!("cannot start a runtime: {error}"))),
    };
    // Nobody waits when the run was given up.
    let _ = events.blocking_send(ThreadEvent::Ended(ended));
}

/// The run from the start of the load on.
struct Phases {
    clock: RunClock,
    start: u64,
    /// Where what is reported begins: with the load, later with the end of the warm-up.
    measured_from: Baseline,
    warm: bool,
    interrupted: bool,
    /// When the last interval ended.
    told: u64,
    /// What was measured since `measured_from`.
    total: Measured,
    /// Failures of the warm-up, which are reported as well.
    warm_up_failures: Measured,
}

/// What had been used when measuring began.
struct Baseline {
    at: u64,
    cpu_seconds: f64,
    usages: Vec<Usage>,
}

impl Baseline {
    fn now(clock: RunClock, watch: &[WatchedProcess]) -> Result<Self, WatchError> {
        let usages = watch.iter().map(WatchedProcess::usage);
        Ok(Self {
            usages: usages.collect::<Result<_, _>>()?,
            cpu_seconds: own_cpu_seconds(),
            at: clock.now(),
        })
    }
}

impl Phases {
    fn begin(plan: &RunPlan, clock: RunClock, threads: &mut Threads) -> Result<Self, RunError> {
        let measured_from = Baseline::now(clock, &plan.watch)?;
        let start = measured_from.at;
        threads.start.send_replace(Some(start));
        Ok(Self {
            clock,
            start,
            told: start,
            measured_from,
            warm: plan.warm_up.is_zero(),
            interrupted: false,
            total: Measured::default(),
            warm_up_failures: Measured::default(),
        })
    }

    async fn follow(
        mut self,
        plan: &RunPlan,
        threads: &mut Threads,
        mut interrupt: std::pin::Pin<&mut impl Future<Output = ()>>,
        progress: &mut dyn FnMut(Interval<'_>),
    ) -> Result<Measurement, RunError> {
        let mut over = std::pin::pin!(sleep(plan.duration));
        let mut warm_up = std::pin::pin!(tokio::time::sleep(plan.warm_up));
        let mut ticks = plan.stats_interval.map(|every| {
            let mut ticks = interval(every);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks.reset();
            ticks
        });
        loop {
            tokio::select! {
                biased;
                () = &mut interrupt => {
                    self.interrupted = true;
                    break;
                }
                () = &mut over => break,
                finished = threads.finished() => {
                    if let Err(error) = finished {
                        self.total.fail(|| error.0, 1);
                    }
                    break;
                }
                () = &mut warm_up, if !self.warm => {
                    match &mut ticks {
                        Some(ticks) => {
                            self.tell(threads, progress);
                            ticks.reset();
                        }
                        None => drop(self.tell_silently(threads)),
                    }
                    self.end_warm_up(plan)?;
                }
                () = tick(&mut ticks) => self.tell(threads, progress),
            }
        }
        self.tell_silently(threads);
        Ok(self.close(plan))
    }

    fn end_warm_up(&mut self, plan: &RunPlan) -> Result<(), WatchError> {
        self.warm = true;
        self.measured_from = Baseline::now(self.clock, &plan.watch)?;
        let warm_up = std::mem::take(&mut self.total);
        for (reason, count) in warm_up.failures() {
            self.warm_up_failures.fail(|| reason.clone(), *count);
        }
        Ok(())
    }

    fn tell(&mut self, threads: &Threads, progress: &mut dyn FnMut(Interval<'_>)) {
        let before = self.told;
        let measured = self.tell_silently(threads);
        progress(Interval {
            warm_up: !self.warm,
            at: seconds(self.told - self.start),
            seconds: seconds(self.told - before),
            measured: &measured,
        });
    }

    fn tell_silently(&mut self, threads: &Threads) -> Measured {
        let mut measured = Measured::default();
        threads.take_into(&mut measured);
        self.told = self.clock.now();
        self.total.add(&measured);
        measured
    }

    /// What was measured and used until now. A run that ended within its warm-up is reported whole.
    fn close(mut self, plan: &RunPlan) -> Measurement {
        let watched = plan.watch.iter().zip(&self.measured_from.usages);
        let messages = self.total.messages;
        self.total.add(&self.warm_up_failures);
        Measurement {
            interrupted: self.interrupted,
            seconds: seconds(self.told - self.measured_from.at),
            cpu_seconds: own_cpu_seconds() - self.measured_from.cpu_seconds,
            watched: watched
                .map(|(process, before)| process.report(*before, messages))
                .collect(),
            total: self.total,
        }
    }
}

/// A run that is over but for what its threads find out at their end.
struct Measurement {
    interrupted: bool,
    seconds: f64,
    cpu_seconds: f64,
    watched: Vec<ProcessReport>,
    total: Measured,
}

impl Measurement {
    /// The report, with what became of messages that were on their way when the time was over: how long they took, and
    /// whether they failed. They are no part of the throughput, which was measured in that time.
    fn report(mut self, plan: &RunPlan, threads: &Threads) -> RunReport {
        let mut late = Measured::default();
        threads.take_into(&mut late);
        (late.messages, late.bytes) = (0, 0);
        self.total.add(&late);
        RunReport::new(RunMeasures {
            kind: plan.kind,
            latency_from: plan.latency_from,
            interrupted: self.interrupted,
            seconds: self.seconds,
            measured: &self.total,
            cpu_seconds: self.cpu_seconds,
            watched: self.watched,
        })
    }
}

async fn sleep(duration: Option<Duration>) {
    match duration {
        Some(duration) => tokio::time::sleep(duration).await,
        None => std::future::pending().await,
    }
}

async fn tick(ticks: &mut Option<tokio::time::Interval>) {
    match ticks {
        Some(ticks) => drop(ticks.tick().await),
        None => std::future::pending().await,
    }
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

/// How long threads may take for what is on its way and to close what they have open: longer than the times that they
/// give themselves for it.
const END_TIME: Duration = Duration::from_secs(10);
const ENDED_EARLY: &str = "a load thread ended early";

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    fn plan() -> RunPlan {
        RunPlan {
            kind: LoadKind::Produce,
            latency_from: LatencyFrom::SendCall,
            threads: 2,
            warm_up: Duration::ZERO,
            duration: None,
            stats_interval: None,
            watch: Vec::new(),
        }
    }

    /// Measures one message and ends, or goes on until it is told to end.
    async fn one_message(mut thread: LoadThread, end: bool) -> Result<(), LoadError> {
        let started = thread.connected().await.unwrap();
        assert!(started <= thread.clock.now());
        thread.meter.measure(|measured| {
            measured.messages += 1;
            measured.bytes += 10;
        });
        if end {
            thread.finished().await;
        }
        // What is closed afterwards is not waited for.
        thread.stop.cancelled().await;
        Ok(())
    }

    async fn report(plan: &RunPlan) -> RunReport {
        let load = |thread| one_message(thread, true);
        run(plan, load, pending(), &mut |_| {}).await.unwrap()
    }

    #[tokio::test]
    async fn a_run_ends_when_all_threads_have_done_their_share() {
        let report = report(&plan()).await;
        assert_eq!((report.messages, report.bytes), (2, 20));
        assert!(!report.interrupted);
    }

    #[tokio::test]
    async fn a_run_ends_after_its_time_and_tells_progress_meanwhile() {
        let plan = RunPlan {
            duration: Some(Duration::from_millis(300)),
            warm_up: Duration::from_millis(100),
            stats_interval: Some(Duration::from_millis(50)),
            ..plan()
        };
        let mut told = Vec::new();
        let load = |thread| one_message(thread, false);
        let mut progress = |interval: Interval<'_>| {
            told.push((interval.warm_up, interval.measured.messages));
        };
        let report = run(&plan, load, pending(), &mut progress).await.unwrap();
        assert!((0.1..0.3).contains(&report.seconds), "{}", report.seconds);
        assert_eq!(told.first().map(|(warm_up, _)| *warm_up), Some(true));
        assert_eq!(told.last().map(|(warm_up, _)| *warm_up), Some(false));
        let during_warm_up = told.iter().filter(|(warm_up, _)| *warm_up);
        let excluded: u64 = during_warm_up.map(|(_, messages)| messages).sum();
        assert_eq!(report.messages + excluded, 2);
    }

    #[tokio::test]
    async fn no_progress_is_told_where_none_is_wanted() {
        let plan = RunPlan {
            duration: Some(Duration::from_millis(40)),
            warm_up: Duration::from_millis(10),
            ..plan()
        };
        let load = |thread| one_message(thread, false);
        let mut progress = |_: Interval<'_>| panic!("told");
        run(&plan, load, pending(), &mut progress).await.unwrap();
    }

    #[tokio::test]
    async fn a_run_that_ends_within_its_warm_up_is_reported_whole() {
        let plan = RunPlan {
            warm_up: Duration::from_secs(100),
            ..plan()
        };
        assert_eq!(report(&plan).await.messages, 2);
    }

    #[tokio::test]
    async fn an_interrupt_ends_the_run_with_its_report() {
        let measured = Arc::new(tokio::sync::Semaphore::new(0));
        let done = Arc::clone(&measured);
        let load = move |mut thread: LoadThread| {
            let done = Arc::clone(&done);
            async move {
                thread.connected().await;
                thread.meter.measure(|measured| measured.messages += 1);
                done.add_permits(1);
                thread.stop.cancelled().await;
                Ok(())
            }
        };
        let interrupt = async {
            measured.acquire_many(2).await.unwrap().forget();
        };
        let report = run(&plan(), load, interrupt, &mut |_| {}).await.unwrap();
        assert!(report.interrupted);
        assert_eq!(report.messages, 2);
    }

    #[tokio::test]
    async fn what_fails_before_the_load_is_the_error_of_the_run() {
        let load = |_| ready(Err(LoadError("no broker".to_owned())));
        let error = run(&plan(), load, pending(), &mut |_| {})
            .await
            .unwrap_err();
        assert_eq!(error.to_string(), "no broker");
        let load = |mut thread: LoadThread| async move {
            thread.connected().await;
            Ok(())
        };
        let ended = run(&plan(), load, ready(()), &mut |_| {}).await;
        assert!(matches!(ended, Err(RunError::Interrupted)), "{ended:?}");
    }

    #[tokio::test]
    async fn what_is_measured_after_the_end_is_no_throughput() {
        let load = |mut thread: LoadThread| async move {
            thread.connected().await;
            thread.stop.cancelled().await;
            thread.meter.measure(|measured| {
                measured.messages += 1;
                measured.bytes += 10;
                measured.latencies.record(2_000_000, 2);
                measured.unanswered += 1;
                measured.unsent += 3;
                measured.fail(|| "closed".to_owned(), 1);
            });
            Ok(())
        };
        let plan = RunPlan {
            duration: Some(Duration::from_millis(20)),
            ..plan()
        };
        let report = run(&plan, load, pending(), &mut |_| {}).await.unwrap();
        assert_eq!((report.messages, report.bytes), (0, 0));
        assert_eq!((report.unanswered, report.unsent, report.failed), (2, 6, 2));
        assert!((report.latency.max_ms - 2.0).abs() < 0.01, "{report:?}");
    }

    #[tokio::test]
    async fn a_thread_that_gives_up_ends_the_run_with_what_failed() {
        let load = |mut thread: LoadThread| async move {
            thread.connected().await;
            if thread.number == 1 {
                thread
                    .meter
                    .measure(|measured| measured.fail(|| "refused".to_owned(), 1));
                thread.gave_up().await;
            }
            thread.stop.cancelled().await;
            Ok(())
        };
        let report = run(&plan(), load, pending(), &mut |_| {}).await.unwrap();
        assert_eq!(report.failed, 1);
    }

    #[tokio::test]
    async fn what_fails_during_the_load_is_in_the_report() {
        let load = |mut thread: LoadThread| async move {
            thread.connected().await;
            if thread.number == 1 {
                return Err(LoadError("fenced".to_owned()));
            }
            thread.stop.cancelled().await;
            Ok(())
        };
        let report = run(&plan(), load, pending(), &mut |_| {}).await.unwrap();
        assert_eq!(report.failed, 1);
        assert_eq!(
            report.failures.first().map(|f| f.reason.as_str()),
            Some("fenced")
        );
    }
}
