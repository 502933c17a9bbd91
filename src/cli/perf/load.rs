//! Running one load from the flags to the exit code.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;

use super::load_args::LoadSettings;
use super::progress::{Progress, print_report};
use crate::app::Shutdown;
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
    let runtime = super::runtime(1)?;
    let mut progress = Progress::new(String::new());
    let ran = runtime.block_on(async {
        let mut shutdown = Shutdown::listen().context("catch signals")?;
        let ran = load.run(&settings.plan, shutdown.requested(), &mut progress);
        anyhow::Ok(ran.await?)
    });
    progress.end();
    let report = ran?;
    print_report(&report, settings.json).context("print the report")?;
    Ok(exit_code(report.failed))
}

/// A run in which messages failed has failed.
pub(super) fn exit_code(failed: u64) -> ExitCode {
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
