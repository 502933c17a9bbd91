//! What stands between the client and the broker: nothing, HAProxy, or a gateway, each a process of its own that is measured
//! through `/proc`; in test mode a gateway in this process.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use anyhow::{Context as _, bail};
use pulsegate::config::GatewaySettings;
use pulsegate::gateway::Gateway;
use pulsegate::http::{Phase, PhaseSender, phases};
use pulsegate::naming::BrokerAddress;
use pulsegate::telemetry::MetricRegistry;

use crate::pipe;

/// A relay that can be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    Direct,
    HaProxy {
        splice: bool,
    },
    /// A gateway binary and what it is called in reports.
    Gateway {
        name: &'static str,
        binary: PathBuf,
    },
    InProcess,
}

impl Kind {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::HaProxy { splice: false } => HAPROXY,
            Self::HaProxy { splice: true } => "haproxy-splice",
            Self::Gateway { name, .. } => name,
            Self::InProcess => "in-process",
        }
    }

    /// Why this relay cannot be measured here, if it cannot.
    pub(crate) fn missing(&self) -> Option<String> {
        let Self::HaProxy { .. } = self else {
            return None;
        };
        Command::new("haproxy")
            .arg("-v")
            .stdout(Stdio::null())
            .status()
            .err()
            .map(|error| format!("haproxy does not start ({error}); apt-get install haproxy"))
    }

    /// Starts the relay in front of the broker.
    pub(crate) fn start(&self, broker: SocketAddr) -> anyhow::Result<Relay> {
        match self {
            Self::Direct => Ok(Relay {
                address: broker,
                running: Running::Nothing,
            }),
            Self::HaProxy { splice } => start_haproxy(broker, *splice),
            Self::Gateway { binary, .. } => start_gateway(binary, broker),
            Self::InProcess => start_in_process(broker),
        }
    }
}

/// A relay that runs; it ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Relay {
    /// Where clients connect.
    pub(crate) address: SocketAddr,
    running: Running,
}

#[derive(Debug)]
enum Running {
    Nothing,
    Process {
        child: Child,
        _files: Option<tempfile::TempDir>,
    },
    Thread(PhaseSender, Option<thread::JoinHandle<()>>),
}

impl Relay {
    /// CPU time that the relay's process took so far, in seconds; 0 where there is none.
    pub(crate) fn cpu_seconds(&self) -> anyhow::Result<f64> {
        let Some(pid) = self.pid() else {
            return Ok(0.0);
        };
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        // utime and stime are the fields 14 and 15; the process name in field 2 may hold spaces and ends with ')'.
        let (_, fields) = stat.rsplit_once(')').context("/proc/PID/stat")?;
        let ticks: u64 = fields
            .split_whitespace()
            .skip(11)
            .take(2)
            .map(str::parse::<u64>)
            .sum::<Result<_, _>>()?;
        Ok(ticks as f64 / TICKS_PER_SECOND)
    }

    /// Memory of the relay's process now, in KiB.
    pub(crate) fn rss_kib(&self) -> anyhow::Result<u64> {
        self.status_kib("VmRSS:")
    }

    /// The most memory that the relay's process ever had, in KiB.
    pub(crate) fn peak_rss_kib(&self) -> anyhow::Result<u64> {
        self.status_kib("VmHWM:")
    }

    fn status_kib(&self, field: &str) -> anyhow::Result<u64> {
        let Some(pid) = self.pid() else { return Ok(0) };
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let value = status
            .lines()
            .find_map(|line| line.strip_prefix(field))
            .and_then(|rest| rest.split_whitespace().next())
            .with_context(|| format!("{field} in /proc/{pid}/status"))?;
        Ok(value.parse()?)
    }

    /// The process of the relay, where it is one.
    pub(crate) fn pid(&self) -> Option<u32> {
        match &self.running {
            Running::Process { child, .. } => Some(child.id()),
            Running::Nothing | Running::Thread(..) => None,
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        match &mut self.running {
            Running::Nothing => {}
            Running::Process { child, .. } => {
                // It may have died by itself; the run has shown that then.
                let _ = child.kill();
                let _ = child.wait();
            }
            Running::Thread(phase, thread) => {
                phase.advance(Phase::Stopped);
                if let Some(thread) = thread.take() {
                    let _ = thread.join();
                }
            }
        }
    }
}

/// HAProxy gets its listener from us, so that no port is guessed and none is taken in between.
fn start_haproxy(broker: SocketAddr, splice: bool) -> anyhow::Result<Relay> {
    let listener = socket2::Socket::from(pipe::listen()?);
    let address = listener
        .local_addr()?
        .as_socket()
        .context("a TCP address")?;
    let (global, defaults) = if splice {
        ("", "  option splice-auto\n")
    } else {
        ("  nosplice\n", "")
    };
    let configuration = format!(
        "global\n  tune.bufsize 131072\n  maxconn 4000\n{global}\
         defaults\n  mode tcp\n  maxconn 4000\n  timeout connect 5s\n  timeout client 1h\n  timeout server 1h\n{defaults}\
         listen relay\n  bind fd@{}\n  server broker {broker}\n",
        listener.as_raw_fd()
    );
    let files = tempfile::tempdir()?;
    let path = files.path().join("haproxy.cfg");
    fs::File::create(&path)?.write_all(configuration.as_bytes())?;
    listener.set_cloexec(false)?;
    let child = Command::new("haproxy")
        .args(["-db", "-q", "-f"])
        .arg(&path)
        .stdin(Stdio::null())
        .spawn()
        .context("start haproxy")?;
    Ok(Relay {
        address,
        running: Running::Process {
            child,
            _files: Some(files),
        },
    })
}

fn start_gateway(binary: &Path, broker: SocketAddr) -> anyhow::Result<Relay> {
    let mut child = Command::new(binary)
        .args([
            "gateway",
            "--port",
            "0",
            "--http-port",
            "0",
            "--bind",
            "127.0.0.1",
        ])
        .args([
            "--broker",
            &format!("pulsar://{broker}"),
            "--log-level",
            "warn",
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {}", binary.display()))?;
    let mut line = String::new();
    let stdout = child.stdout.take().context("a pipe")?;
    let read = BufReader::new(stdout).read_line(&mut line);
    let address = line
        .strip_prefix("ready broker=pulsar://")
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|address| address.parse().ok());
    let relay = Relay {
        address: address.unwrap_or(broker),
        running: Running::Process {
            child,
            _files: None,
        },
    };
    read?;
    if address.is_none() {
        bail!("{} said {line:?} instead of ready", binary.display());
    }
    Ok(relay)
}

fn start_in_process(broker: SocketAddr) -> anyhow::Result<Relay> {
    let broker = BrokerAddress::from_host_port(&broker.to_string())?;
    let mut settings = GatewaySettings::for_broker(broker.into());
    settings.bind_address = [127, 0, 0, 1].into();
    settings.service_port = Some(0);
    let (phase, phases) = phases();
    let (bound, address) = std::sync::mpsc::channel();
    let thread = pipe::on_a_thread(async move {
        let registry = MetricRegistry::new("bench");
        let gateway = Gateway::bind(settings, &registry, phases).expect("a free port can be bound");
        bound
            .send(gateway.handle().local_addr().expect("its port is on"))
            .expect("the starter waits");
        gateway.run().await;
    });
    Ok(Relay {
        address: address.recv().context("the gateway starts")?,
        running: Running::Thread(phase, Some(thread)),
    })
}

/// The peer that the others are compared with.
pub(crate) const HAPROXY: &str = "haproxy";
/// The unit of `/proc/PID/stat`: USER_HZ, 100 on every Linux architecture.
const TICKS_PER_SECOND: f64 = 100.0;
