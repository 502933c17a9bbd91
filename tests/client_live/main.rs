//! Our client against a real cluster: `client_live --service-url URL [--run ID] [CASE ...]`.
//!
//! Without `--service-url` it does nothing, so that `cargo test` passes where no cluster runs. Prints `PASS case` or
//! `FAIL case: why`; the exit status is not 0 when a case failed. What a case wrote is described by lines `WROTE {json}`,
//! for `read_back.py`, which reads it with the official Python client.

#![expect(clippy::print_stdout, reason = "a program for the command line")]

mod producer_cases;

use std::{future::Future, pin::Pin, process::ExitCode, time::Duration};

use pulsegate::{client::PulsarClient, naming::TopicName};

/// What a case gets.
#[derive(Clone)]
struct Context {
    client: PulsarClient,
    /// Part of every topic name, so that runs do not meet.
    run: String,
    namespace: String,
}

impl Context {
    /// A topic of this case and run.
    fn topic(&self, name: &str) -> TopicName {
        let name = format!("persistent://{}/{name}-{}", self.namespace, self.run);
        TopicName::parse(&name).expect("a valid name")
    }
}

type CaseFuture = Pin<Box<dyn Future<Output = anyhow::Result<()>>>>;
type Case = (&'static str, fn(Context) -> CaseFuture);

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (mut url, mut run, mut namespace) = (None, "0".to_owned(), "public/default".to_owned());
    let mut wanted = Vec::new();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--service-url" => url = arguments.next(),
            "--run" => run = arguments.next().unwrap_or_default(),
            "--namespace" => namespace = arguments.next().unwrap_or_default(),
            _ if argument.starts_with('-') => {}
            _ => wanted.push(argument),
        }
    }
    let Some(url) = url else {
        println!("no --service-url: nothing to do");
        return ExitCode::SUCCESS;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let mut failed = 0;
    for (name, case) in producer_cases::CASES {
        if !wanted.is_empty() && !wanted.iter().any(|wanted| wanted == name) {
            continue;
        }
        let url = url.parse().expect("a service URL");
        let client = PulsarClient::new(url, Default::default());
        let context = Context {
            client: client.clone(),
            run: run.clone(),
            namespace: namespace.clone(),
        };
        let result = runtime.block_on(async {
            tokio::time::timeout(CASE_TIMEOUT, case(context))
                .await
                .unwrap_or_else(|_| Err(anyhow::anyhow!("not done within {CASE_TIMEOUT:?}")))
        });
        client.close();
        match result {
            Ok(()) => println!("PASS {name}"),
            Err(error) => {
                failed += 1;
                println!("FAIL {name}: {error:#}");
            }
        }
    }
    ExitCode::from(u8::from(failed > 0))
}

/// For one case.
const CASE_TIMEOUT: Duration = Duration::from_secs(300);
