//! The short names of `pulsar-perf` that have more than one letter, such as `-time`, and flags that it has and we have not.
//!
//! Nobody else has such names, so they are turned into the long ones before the arguments are parsed.

use std::ffi::OsString;

use crate::cli::parse::Faults;

/// Prepares arguments for the parser: short names of more than one letter become long ones, and those of flags that are not
/// supported are taken out, since the parser would take `-bw` for `-b w`.
pub(in crate::cli) fn prepare(arguments: Vec<OsString>, faults: &mut Faults) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = arguments.into_iter().map(with_long_name).collect();
    arguments.retain(|argument| {
        let text = argument.to_string_lossy();
        let name = text.split('=').next().unwrap_or_default();
        let is_one = name.len() > 2 && !name.starts_with("--") && NOT_SUPPORTED.contains(&name);
        if is_one {
            faults.unknown(describe_unknown(name));
        }
        !is_one
    });
    arguments
}

fn with_long_name(argument: OsString) -> OsString {
    let Some(text) = argument.to_str() else {
        return argument;
    };
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (text, None),
    };
    let Some((_, long)) = SHORT_NAMES.iter().find(|(short, _)| *short == name) else {
        return argument;
    };
    match value {
        Some(value) => format!("{long}={value}").into(),
        None => (*long).into(),
    }
}

/// What is told of a flag that there is not.
pub(in crate::cli) fn describe_unknown(name: &str) -> String {
    if NOT_SUPPORTED.contains(&name) {
        format!("{name}: a flag of pulsar-perf that is not supported here")
    } else {
        format!("{name}: unknown flag")
    }
}

/// Short names of more than one letter and the long ones that they stand for. No two subcommands differ in one.
const SHORT_NAMES: &[(&str, &str)] = &[
    ("-am", "--access-mode"),
    ("-au", "--admin-url"),
    ("-bb", "--batch-max-bytes"),
    ("-bm", "--batch-max-messages"),
    ("-ch", "--chunking"),
    ("-db", "--disable-batching"),
    ("-ef", "--exit-on-failure"),
    ("-mk", "--message-key-generation-mode"),
    ("-np", "--partitions"),
    ("-ns", "--num-subscriptions"),
    ("-pn", "--producer-name"),
    ("-rs", "--replicated"),
    ("-set", "--set-event-time"),
    ("-sp", "--subscription-position"),
    ("-ss", "--subscriptions"),
    ("-st", "--subscription-type"),
    ("-threads", "--num-test-threads"),
    ("-time", "--test-duration"),
];

/// Flags of `pulsar-perf` that have no meaning here, or none yet.
const NOT_SUPPORTED: &[&str] = &[
    "-abort",
    "-ac",
    "-aq",
    "-bw",
    "-dr",
    "-fc",
    "-fp",
    "-ioThreads",
    "-lt",
    "-mc",
    "-ml",
    "-mlr",
    "-nmt",
    "-ntxn",
    "-pm",
    "-tto",
    "-txn",
    "-k",
    "-v",
    "-d",
    "-e",
    "-p",
    "--auto-scaled-receiver-queue-size",
    "--auto_ack_chunk_q_full",
    "--busy-wait",
    "--delay",
    "--delay-range",
    "--encryption-key-name",
    "--encryption-key-value-file",
    "--expire_time_incomplete_chunked_messages",
    "--format-class",
    "--format-payload",
    "--histogram-file",
    "--max-lookup-request",
    "--max-outstanding-across-partitions",
    "--max_chunked_msg",
    "--memory-limit",
    "--num-io-threads",
    "--num-listener-threads",
    "--numMessage-perTransaction",
    "--payload-delimiter",
    "--pool-messages",
    "--receiver-queue-size-across-partitions",
    "--ssl-factory-plugin",
    "--ssl-factory-plugin-params",
    "--txn-enable",
    "--txn-timeout",
    "--use-tls",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(texts: &[&str]) -> Vec<OsString> {
        texts.iter().map(OsString::from).collect()
    }

    #[test]
    fn short_names_become_long_ones_with_and_without_a_value() {
        let given = arguments(&["-time", "5", "-np=3", "-s", "10", "-timely", "my-topic"]);
        let expected = [
            "--test-duration",
            "5",
            "--partitions=3",
            "-s",
            "10",
            "-timely",
            "my-topic",
        ];
        let mut faults = Faults::default();
        assert_eq!(prepare(given, &mut faults), arguments(&expected));
        assert!(faults.problems.is_empty());
    }

    #[test]
    fn a_name_that_begins_like_a_known_one_is_not_taken_for_it() {
        let mut faults = Faults::default();
        let rest = prepare(arguments(&["x", "-bw", "-b", "5"]), &mut faults);
        assert_eq!(rest, arguments(&["x", "-b", "5"]));
        assert!(faults.has_unknown);
        assert_eq!(
            faults.problems.into_wrong().into_lines(),
            ["-bw: a flag of pulsar-perf that is not supported here"]
        );
        assert_eq!(describe_unknown("--nope"), "--nope: unknown flag");
    }
}
