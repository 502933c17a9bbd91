//! The `pulsegate` binary: arguments to settings to telemetry to runtime to a role to an exit code.

use std::fmt::Display;
use std::io::Write as _;
use std::process::ExitCode;

use pulsegate::cli::{self, Arguments, Command, GatewayArgs};
use pulsegate::{app, telemetry};

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match cli::parse(std::env::args_os()) {
        Ok(Arguments { command }) => match command {
            Command::Gateway(arguments) => gateway(&arguments),
            Command::Produce(arguments) => arguments.run(),
            Command::Consume(arguments) => arguments.run(),
            Command::Read(arguments) => arguments.run(),
            Command::Perf(arguments) => arguments.run(),
            Command::Inspect(arguments) => arguments.run(),
        },
        Err(code) => code,
    }
}

fn gateway(arguments: &GatewayArgs) -> ExitCode {
    let loaded = match arguments.load() {
        Ok(loaded) => loaded,
        Err(errors) => {
            complain(&errors);
            return ExitCode::from(cli::EXIT_USAGE);
        }
    };
    if let Err(errors) = app::check_gateway(&loaded.settings) {
        complain(&errors);
        return ExitCode::from(cli::EXIT_USAGE);
    }
    if arguments.check_only() {
        for warning in &loaded.warnings {
            complain(&format_args!("warning: {warning}"));
        }
        complain(&"the settings are valid");
        return ExitCode::SUCCESS;
    }
    let _log = match telemetry::init_logging(&arguments.log_settings()) {
        Ok(guard) => guard,
        // The level was checked with the arguments.
        Err(error) => {
            complain(&error);
            return ExitCode::FAILURE;
        }
    };
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let runtime = match cli::start_runtime(None) {
        Ok(runtime) => runtime,
        Err(error) => {
            complain(&format_args!("cannot start the runtime: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let ended = runtime.block_on(app::run_gateway(loaded.settings));
    // Whatever did not end within its deadline is cut here rather than waited for.
    runtime.shutdown_background();
    match ended {
        Ok(ended) => cli::exit_code(ended),
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Tells the user on standard error; there is nobody to tell when that fails.
fn complain(what: &dyn Display) {
    let _ = writeln!(std::io::stderr(), "pulsegate: {what}");
}
