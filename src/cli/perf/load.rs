//! Running one load from the flags to the exit code.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use tokio_util::sync::CancellationToken;

use super::load_args::LoadSettings;
use super::progress::{Progress, print_report};
use crate::app::Shutdown;
use crate::cli::EXIT_INTERRUPTED;
use crate::perf::consume::{ConsumeLoad, Consumption, consume};
use crate::perf::produce::{ProduceLoad, produce};
use crate::perf::report::RunReport;
use crate::perf::run::{self, RunError, RunPlan};

/// The load of a run.
#[derive(Debug, Clone)]
pub(super) enum Load {
    Produce(Arc<ProduceLoad>),
    Consume(Arc<ConsumeLoad>),
}

impl Load {
    /// Runs it once.
    pub(super) async fn run(
        &self,
        plan: &RunPlan,
        interrupt: impl Future<Output = ()>,
        progress: &mut Progress,
    ) -> Result<RunReport, RunError> {
        let mut tell = |interval: crate::perf::report::Interval<'_>| progress.tell(interval);
        match self {
            Self::Produce(load) => {
                let load = Arc::clone(load);
                let start = move |thread| produce(Arc::clone(&load), thread);
                run::run(plan, start, interrupt, &mut tell).await
            }
            Self::Consume(load) => {
                let consumption = Arc::new(Consumption::new((**load).clone()));
                let start = move |thread| consume(Arc::clone(&consumption), thread);
                run::run(plan, start, interrupt, &mut tell).await
            }
        }
    }
}

/// Runs one load, prints its report, and says how the process is to end.
pub(super) fn run_one(settings: &LoadSettings, load: &Load) -> anyhow::Result<ExitCode> {
    let mut progress = Progress::new(String::new());
    let ran = until_second_signal(async |stop| {
        let run = load.run(&settings.plan, stop.cancelled(), &mut progress);
        anyhow::Ok(run.await?)
    });
    progress.end();
    let Some(report) = ran? else {
        return Ok(ExitCode::from(EXIT_INTERRUPTED));
    };
    print_report(&report, settings.json).context("print the report")?;
    Ok(exit_code(report.lost()))
}

/// Does work that the first signal asks to end, with the token that it gets, and that the second one ends at once: then there
/// is no result.
pub(super) fn until_second_signal<T>(
    work: impl AsyncFnOnce(&CancellationToken) -> anyhow::Result<T>,
) -> anyhow::Result<Option<T>> {
    let runtime = super::runtime(1)?;
    runtime.block_on(async {
        let mut signals = Shutdown::listen().context("catch signals")?;
        let stop = CancellationToken::new();
        let signalled_twice = async {
            signals.requested().await;
            stop.cancel();
            signals.requested().await;
        };
        tokio::select! {
            biased;
            () = signalled_twice => Ok(None),
            done = work(&stop) => done.map(Some),
        }
    })
}

/// A run in which messages were lost has failed.
pub(super) fn exit_code(lost: u64) -> ExitCode {
    if lost == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
