//! `pulsegate perf null-broker`.

use std::io::{self, Write as _};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;

use super::load_args::THREADS_MAX;
use crate::app::Shutdown;
use crate::cli::problems::Problems;
use crate::naming::ServiceUrl;
use crate::perf::null_broker::{NullBroker, NullBrokerOptions};

/// Arguments of the null broker.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct NullBrokerArgs {
    /// Address to listen on; port 0 picks a free one [default: 127.0.0.1:6650].
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// URL that lookups answer with [default: the address that the client has connected to].
    #[arg(long, value_name = "URL")]
    advertised: Option<String>,
    /// Partitions of every topic; 0 is a topic without partitions [default: 0].
    #[arg(long, visible_alias = "np", value_name = "N")]
    partitions: Option<String>,
    /// Bytes of each message to a consumer [default: 1024].
    #[arg(short, long, value_name = "BYTES")]
    size: Option<String>,
    /// Send messages in batches of so many; 0 sends each alone [default: 0].
    #[arg(long, value_name = "N")]
    batch: Option<String>,
    /// Threads that serve connections [default: 1].
    #[arg(long, value_name = "N")]
    threads: Option<String>,
}

/// A null broker to be run.
#[derive(Debug)]
pub(super) struct NullBrokerPlan {
    options: NullBrokerOptions,
    threads: usize,
}

impl NullBrokerArgs {
    pub(super) fn plan(&self, problems: &mut Problems) -> NullBrokerPlan {
        let defaults = NullBrokerOptions::default();
        let listen = self.listen.as_deref().map(resolve).transpose();
        let listen = listen.unwrap_or_else(|error| {
            problems.add("--listen", error);
            None
        });
        if let Some(url) = &self.advertised
            && let Err(error) = url.parse::<ServiceUrl>()
        {
            problems.add("--advertised", error);
        }
        let partitions = problems.count(
            "--partitions",
            self.partitions.as_deref(),
            0..=PARTITIONS_MAX,
        );
        let size = problems.count("--size", self.size.as_deref(), 0..=SIZE_MAX);
        let batch = problems.count("--batch", self.batch.as_deref(), 0..=SIZE_MAX);
        let number = |count: Option<usize>| u32::try_from(count.unwrap_or(0)).unwrap_or(u32::MAX);
        let options = NullBrokerOptions {
            listen: listen.unwrap_or(defaults.listen),
            advertised: self.advertised.clone(),
            partitions: number(partitions),
            size: size.unwrap_or(defaults.size),
            batch: Some(number(batch)).filter(|batch| *batch > 0),
        };
        if let Err(error) = options.check() {
            problems.add("--size, --batch", error);
        }
        let threads = problems.count("--threads", self.threads.as_deref(), 1..=THREADS_MAX);
        NullBrokerPlan {
            options,
            threads: threads.unwrap_or(1),
        }
    }
}

fn resolve(text: &str) -> io::Result<SocketAddr> {
    let missing = || io::Error::new(io::ErrorKind::AddrNotAvailable, "the host has no address");
    text.to_socket_addrs()?.next().ok_or_else(missing)
}

impl NullBrokerPlan {
    /// Serves until a signal ends it.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let runtime = super::runtime(self.threads)?;
        runtime.block_on(async {
            let mut shutdown = Shutdown::listen().context("catch signals")?;
            let broker = NullBroker::bind(&self.options)?;
            let mut out = io::stdout();
            writeln!(out, "ready broker=pulsar://{}", broker.local_addr())
                .and_then(|()| out.flush())
                .context("print the ready line")?;
            let served = broker.run(shutdown.requested()).await;
            // For whoever watches; where nobody does, the end is what counts.
            let _ = writeln!(
                io::stderr(),
                "pulsegate: acknowledged {} entries, sent {}",
                served.acknowledged,
                served.pushed
            );
            Ok(ExitCode::SUCCESS)
        })
    }
}

/// Partitions of a topic, as many as our own clients take.
const PARTITIONS_MAX: usize = 100_000;
/// Bytes of a message, and messages of a batch; what clients take of both together is less.
const SIZE_MAX: usize = 5 << 20;

const EXAMPLES: &str = "\
Examples:
  pulsegate perf null-broker --listen 127.0.0.1:0
  pulsegate perf null-broker --listen 0.0.0.0:6650 --advertised pulsar://bench-host:6650 --partitions 4
  pulsegate perf null-broker --size 100 --batch 50 --threads 2

It acknowledges what is published and stores nothing. Every consumer gets made-up messages of its own as fast as it has
permits, without end. Checksums of what is published are not verified.

When it listens, one line goes to standard output:
  ready broker=pulsar://ADDRESS

It ends with exit code 0 at SIGTERM or SIGINT.";
