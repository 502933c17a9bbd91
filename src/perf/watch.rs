//! What other processes, and this one, have used of the machine: read from `/proc`.

use std::fs;
use std::io;

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// A process whose use of the machine is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchedProcess {
    pid: u32,
}

/// What a process has used since it started.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Usage {
    /// User and system time of all its threads, in seconds.
    pub cpu_seconds: f64,
    /// The most memory it had in RAM at a time, in bytes.
    pub peak_rss_bytes: u64,
}

/// What a process used during a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ProcessReport {
    /// The process.
    pub pid: u32,
    /// User and system time during the measurement, in seconds; `None` when the process was gone at its end.
    pub cpu_seconds: Option<f64>,
    /// Messages of the run for each of these seconds; `None` when too little was used to say.
    pub messages_per_cpu_second: Option<f64>,
    /// The most memory it had in RAM at a time since it started, in bytes.
    pub peak_rss_bytes: Option<u64>,
}

/// Why a process cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// Its files in `/proc` cannot be read; it has ended, for instance.
    #[error("cannot read the state of process {pid}: {source}")]
    Read {
        /// The process.
        pid: u32,
        /// What the operating system says.
        source: io::Error,
    },
    /// The files have another form than the kernel's manual says.
    #[error("the state of process {pid} has an unknown form")]
    Form {
        /// The process.
        pid: u32,
    },
}

impl WatchedProcess {
    /// A process that runs now.
    ///
    /// # Errors
    /// When its use of the machine cannot be read.
    pub fn new(pid: u32) -> Result<Self, WatchError> {
        let process = Self { pid };
        process.usage()?;
        Ok(process)
    }

    /// What it has used so far. Reads two small files, so it may block for microseconds.
    ///
    /// # Errors
    /// See [`WatchError`].
    pub fn usage(&self) -> Result<Usage, WatchError> {
        let pid = self.pid;
        let read = |file| {
            fs::read_to_string(format!("/proc/{pid}/{file}"))
                .map_err(|source| WatchError::Read { pid, source })
        };
        let ticks = cpu_ticks(&read("stat")?).ok_or(WatchError::Form { pid })?;
        Ok(Usage {
            cpu_seconds: in_seconds(ticks, rustix::param::clock_ticks_per_second()),
            // A process that has ended and was not waited for has no memory.
            peak_rss_bytes: peak_rss(&read("status")?).unwrap_or(0),
        })
    }

    /// What it used between `before` and now, in which `messages` messages were measured.
    #[must_use]
    pub fn report(&self, before: Usage, messages: u64) -> ProcessReport {
        let now = self.usage().ok();
        let cpu_seconds = now.map(|now| (now.cpu_seconds - before.cpu_seconds).max(0.0));
        ProcessReport {
            pid: self.pid,
            cpu_seconds,
            messages_per_cpu_second: cpu_seconds.and_then(|cpu| per_second(messages, cpu)),
            peak_rss_bytes: now.map(|now| now.peak_rss_bytes),
        }
    }
}

/// CPU time that this process has used so far, user and system, in seconds.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
pub fn own_cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// `count` for each second; `None` when there was too little time to say.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
pub fn per_second(count: u64, seconds: f64) -> Option<f64> {
    (seconds > 0.0).then(|| count as f64 / seconds)
}

/// `utime` and `stime`, the fields 14 and 15 of `/proc/PID/stat`. The second field is a name in parentheses that may hold
/// anything, parentheses as well.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    let mut fields = behind_name.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// `VmHWM` of `/proc/PID/status`, in bytes.
fn peak_rss(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn in_seconds(ticks: u64, ticks_per_second: u64) -> f64 {
    ticks as f64 / ticks_per_second.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_does_not_move_the_fields() {
        let stat = "42 (a) b) (c) S 1 42 42 0 -1 4194560 100 0 0 0 250 50 7 9 20 0 1 0 100 1000 10";
        assert_eq!(cpu_ticks(stat), Some(300));
        assert_eq!(cpu_ticks("42 (x) S 1"), None);
        assert_eq!(cpu_ticks(""), None);
    }

    #[test]
    fn the_peak_is_read_from_the_status() {
        let status = "Name:\tx\nVmPeak:\t 9 kB\nVmHWM:\t    2048 kB\nVmRSS:\t 1 kB\n";
        assert_eq!(peak_rss(status), Some(2 * 1024 * 1024));
        assert_eq!(peak_rss("Name:\tx\n"), None);
    }

    #[test]
    fn this_process_uses_time_and_memory() {
        let own = WatchedProcess::new(std::process::id()).unwrap();
        let before = own.usage().unwrap();
        let own_before = own_cpu_seconds();
        assert!(before.peak_rss_bytes > 100_000);
        while own_cpu_seconds() < own_before + 0.05 {
            std::hint::spin_loop();
        }
        let report = own.report(before, 500);
        assert!(report.cpu_seconds.unwrap() >= 0.02, "{report:?}");
        assert!(report.messages_per_cpu_second.unwrap() > 0.0);
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error() {
        // Above the largest process id that Linux gives out.
        let missing = WatchedProcess::new(u32::MAX).unwrap_err();
        assert!(matches!(missing, WatchError::Read { .. }), "{missing}");
    }
}
