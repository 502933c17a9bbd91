//! The short names of `pulsar-perf` that have more than one letter, such as `-time`, and unknown flags.
//!
//! Nobody else has such names, so they are turned into the long ones before the arguments are parsed.

use std::ffi::OsString;

use clap::Command;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

/// Replaces the short names of more than one letter in the arguments of a subcommand by the long ones.
pub(super) fn with_long_names(arguments: Vec<OsString>) -> Vec<OsString> {
    arguments.into_iter().map(with_long_name).collect()
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

/// Takes the flags out that `command` does not know: what is left, and one line for each that was taken out.
///
/// A value behind such a flag stays and looks like a topic; who gets a line of this kind must not complain of topics.
pub(super) fn without_unknown(
    command: &Command,
    mut arguments: Vec<OsString>,
) -> (Vec<OsString>, Vec<String>) {
    let mut unknown = Vec::new();
    // The parser would take `-bw` for `-b w`.
    arguments.retain(|argument| {
        let text = argument.to_string_lossy();
        let name = text.split('=').next().unwrap_or_default();
        let is_one = name.len() > 2 && !name.starts_with("--") && NOT_SUPPORTED.contains(&name);
        if is_one {
            unknown.push(describe(name));
        }
        !is_one
    });
    loop {
        let parsed = command.clone().try_get_matches_from(&arguments);
        let flag = match &parsed {
            Err(error) if error.kind() == ErrorKind::UnknownArgument => unknown_flag(error),
            _ => None,
        };
        let Some(flag) = flag else {
            return (arguments, unknown);
        };
        let is_it = |argument: &OsString| {
            let text = argument.to_string_lossy();
            // Of letters behind one dash the unknown one is named alone.
            let long = text == flag.as_str() || text.starts_with(&format!("{flag}="));
            long || (flag.len() == 2
                && !text.starts_with("--")
                && text.starts_with('-')
                && text.contains(flag.trim_start_matches('-')))
        };
        let Some(at) = arguments.iter().position(is_it) else {
            return (arguments, unknown);
        };
        let removed = arguments.remove(at).to_string_lossy().into_owned();
        unknown.push(describe(&removed));
    }
}

fn unknown_flag(error: &Error) -> Option<String> {
    match error.get(ContextKind::InvalidArg)? {
        ContextValue::String(flag) => Some(flag.clone()),
        _ => None,
    }
}

fn describe(flag: &str) -> String {
    let name = flag.split('=').next().unwrap_or_default();
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
    use clap::{Arg, ArgAction};

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
        assert_eq!(with_long_names(given), arguments(&expected));
    }

    #[test]
    fn a_name_that_begins_like_a_known_one_is_not_taken_for_it() {
        let command = Command::new("x").arg(Arg::new("window").short('b'));
        let (rest, unknown) = without_unknown(&command, arguments(&["x", "-bw", "-b", "5"]));
        assert_eq!(rest, arguments(&["x", "-b", "5"]));
        assert_eq!(
            unknown,
            ["-bw: a flag of pulsar-perf that is not supported here"]
        );
    }

    #[test]
    fn all_unknown_flags_are_found() {
        let command = Command::new("x")
            .arg(Arg::new("size").short('s').long("size"))
            .arg(Arg::new("topics").action(ArgAction::Append));
        let given = arguments(&["x", "--busy-wait", "-s", "5", "--nope=7", "-q", "t", "-txn"]);
        let (rest, unknown) = without_unknown(&command, given);
        assert_eq!(rest, arguments(&["x", "-s", "5", "t"]));
        assert_eq!(
            unknown,
            [
                "-txn: a flag of pulsar-perf that is not supported here",
                "--busy-wait: a flag of pulsar-perf that is not supported here",
                "--nope: unknown flag",
                "-q: unknown flag",
            ]
        );
    }
}
