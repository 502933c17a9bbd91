//! Drives a Pulsar service with the project's own client and checks what comes back. See ../README.md.
#![allow(clippy::print_stdout, clippy::print_stderr, clippy::indexing_slicing)]

mod cases;
mod disturbance;
mod further;
mod roles;
mod service;

use std::{collections::BTreeMap, future::Future, pin::Pin, process::ExitCode, time::Instant};

use service::Service;

/// What a case says when it is done: a note for its line.
type Outcome = anyhow::Result<String>;
type Case = for<'a> fn(&'a Service) -> Pin<Box<dyn Future<Output = Outcome> + 'a>>;

macro_rules! case {
    ($name:literal, $run:path $(, $argument:expr)*) => {
        ($name, (|service| Box::pin(async move { $run(service $(, $argument)*).await.map(service::note) })) as Case)
    };
}

const CASES: &[(&str, Case)] = &[
    case!("produce_consume", cases::produce_consume),
    case!("partitioned", cases::partitioned),
    case!("exclusive", cases::exclusive),
    case!("shared", cases::shared),
    case!("failover", cases::failover),
    case!("key_shared", cases::key_shared),
    case!("batched", cases::batched),
    case!("unbatched", cases::unbatched_alone),
    case!("compression_none", cases::compressed, "none"),
    case!("compression_lz4", cases::compressed, "lz4"),
    case!("compression_zlib", cases::compressed, "zlib"),
    case!("compression_zstd", cases::compressed, "zstd"),
    case!("compression_snappy", cases::compressed, "snappy"),
    case!("chunked_20mb", cases::chunked),
    case!("reader", cases::reader),
    case!("seek_by_id", cases::seek_by_id),
    case!("seek_by_time", cases::seek_by_time),
    case!("exclusive_producer", further::exclusive_producer),
    case!("fenced_producer", further::fenced_producer),
    case!("waiting_producer", further::waiting_producer),
    case!("negative_ack", further::negative_ack),
    case!("ack_receipts", further::ack_receipts),
    case!("shared_partitioned", further::shared_partitioned),
    case!("key_shared_partitioned", further::key_shared_partitioned),
    case!("failover_partitioned", further::failover_partitioned),
    case!("pattern", further::pattern),
    case!("raw_entries", further::raw_entries),
    case!("disturbance", disturbance::disturbance),
];

/// Only when named: they want a broker that authorizes, and a role of their own.
const ROLE_CASES: &[(&str, Case)] = &[
    case!("produce_only", roles::produce_only),
    case!("consume_only", roles::consume_only),
    case!("stranger", roles::stranger),
];

fn main() -> ExitCode {
    let mut options = BTreeMap::from([
        ("--namespace".to_owned(), "public/default".to_owned()),
        ("--run".to_owned(), std::process::id().to_string()),
    ]);
    let mut names = Vec::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        if argument.starts_with("--") {
            options.insert(argument, arguments.next().unwrap_or_default());
        } else {
            names.push(argument);
        }
    }
    let all = || CASES.iter().chain(ROLE_CASES);
    let chosen: Vec<_> = if names.is_empty() {
        CASES.iter().collect()
    } else {
        all()
            .filter(|(name, _)| names.iter().any(|wanted| wanted == name))
            .collect()
    };
    let known = names
        .iter()
        .all(|name| all().any(|(known, _)| known == name));
    if !known || !options.contains_key("--service-url") || !options.contains_key("--admin-url") {
        eprintln!(
            "usage: compat-client --service-url URL --admin-url URL [--admin-token TOKEN] [--namespace T/N] [--run ID] \
             [--trust FILE] [--auth-plugin CLASS --auth-params TEXT] [CASE ...]"
        );
        let names: Vec<_> = all().map(|(name, _)| *name).collect();
        eprintln!("cases: {}", names.join(" "));
        return ExitCode::from(2);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime can be made");
    let failed = runtime.block_on(async {
        let service = Service::new(&options)?;
        let mut failed = 0;
        for (name, run) in &chosen {
            failed += usize::from(!run_case(name, *run, &service).await);
        }
        service.client.close();
        anyhow::Ok(failed)
    });
    let failed = match failed {
        Ok(failed) => failed,
        Err(error) => {
            eprintln!("client: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    println!("{} passed, {failed} failed", chosen.len() - failed);
    ExitCode::from(u8::from(failed > 0))
}

async fn run_case(name: &str, run: Case, service: &Service) -> bool {
    let began = Instant::now();
    match run(service).await {
        Ok(note) => {
            println!(
                "PASS {name} ({:.1} s) {note}",
                began.elapsed().as_secs_f64()
            );
            true
        }
        Err(error) => {
            println!("FAIL {name}: {error:#}");
            false
        }
    }
}
