//! The client of `src/client/` against a running cluster: `client_live SERVICE_URL ADMIN_URL CASE...`.
//!
//! Each case prints `PASS case` or `FAIL case: why`; the exit status is 1 when one failed. `run.py` in this folder starts
//! clusters, gateways and proxies and calls this. Without arguments, as `cargo test` runs it, it does nothing.

#![allow(clippy::print_stdout, clippy::indexing_slicing)]

#[macro_use]
mod context;
mod consumer_cases;
mod producer_cases;
mod reader_cases;

use std::{process::ExitCode, time::Duration};

use context::{Case, Context};

fn cases() -> Vec<(&'static str, Case)> {
    let mut cases = consumer_cases::cases();
    cases.extend_from_slice(producer_cases::CASES);
    cases.extend(reader_cases::cases());
    cases
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"))
        .collect();
    let [service_url, admin_url, names @ ..] = arguments.as_slice() else {
        println!("no cluster named: nothing to do");
        return ExitCode::SUCCESS;
    };
    let all = cases();
    let names: Vec<String> = if names.is_empty() {
        all.iter().map(|(name, _)| (*name).to_owned()).collect()
    } else {
        names.to_vec()
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let mut failed = 0;
    for name in names {
        let Some((_, case)) = all.iter().find(|(known, _)| *known == name) else {
            println!("FAIL {name}: no such case");
            failed += 1;
            continue;
        };
        let context = Context::new(service_url, admin_url, &name);
        let run = async { tokio::time::timeout(CASE_TIMEOUT, case(context)).await };
        match runtime.block_on(run) {
            Ok(Ok(())) => println!("PASS {name}"),
            Ok(Err(error)) => {
                println!("FAIL {name}: {error:#}");
                failed += 1;
            }
            Err(_) => {
                println!("FAIL {name}: not done in {CASE_TIMEOUT:?}");
                failed += 1;
            }
        }
    }
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

const CASE_TIMEOUT: Duration = Duration::from_secs(300);
