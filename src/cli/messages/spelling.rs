//! Arguments as `pulsar-client` takes them, in the form that our parser takes.
//!
//! Two things differ: `pulsar-client` has options of one dash and several letters (`-vs`), and its connection options
//! stand before the subcommand. Everything else is left as it is.

use std::ffi::OsString;

/// The subcommands that `pulsar-client` has as well.
const SUBCOMMANDS: &[&str] = &["produce", "consume", "read"];

/// Options that `pulsar-client` takes before the subcommand; each has a value.
const ROOT_OPTIONS: &[&str] = &[
    "--url",
    "--proxy-url",
    "--proxy-protocol",
    "--auth-plugin",
    "--auth-params",
    "--listener-name",
    "--tlsTrustCertsFilePath",
    "--memory-limit",
    "-ml",
];

/// Options of one dash and several letters, and their long names. No letters have two meanings.
const SHORT_OPTIONS: &[(&str, &str)] = &[
    ("-ac", "--auto_ack_chunk_q_full"),
    ("-ca", "--crypto-failure-action"),
    ("-db", "--disable-batching"),
    ("-dr", "--disable-replication"),
    ("-ekn", "--encryption-key-name"),
    ("-ekv", "--encryption-key-value"),
    ("-etp", "--end-timestamp"),
    ("-ks", "--key-schema"),
    ("-kvet", "--key-value-encoding-type"),
    ("-kvk", "--key-value-key"),
    ("-kvkf", "--key-value-key-file"),
    ("-mc", "--max_chunked_msg"),
    ("-ml", "--memory-limit"),
    ("-mp", "--print-metadata"),
    ("-pm", "--pool-messages"),
    ("-rs", "--replicated"),
    ("-st", "--schema-type"),
    ("-stp", "--start-timestamp"),
    ("-vs", "--value-schema"),
];

/// Rewrites the arguments of the process, the program's name first. Arguments of other subcommands stay as they are.
///
/// As in `pulsar-client`, the name of an option is never taken as the value of the one before it.
pub(in crate::cli) fn from_pulsar_client(
    arguments: impl IntoIterator<Item = OsString>,
) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = arguments.into_iter().collect();
    let Some(at) = subcommand(&arguments) else {
        return arguments;
    };
    let rest = arguments.split_off(at + 1);
    // The subcommand comes first, then what stood before it.
    arguments.get_mut(1..).unwrap_or_default().rotate_right(1);
    arguments.extend(rest);
    let mut literal = false;
    for argument in arguments.iter_mut().skip(2) {
        literal |= argument == "--";
        if !literal && let Some(long) = argument.to_str().and_then(long_name) {
            *argument = long.into();
        }
    }
    arguments
}

/// Where the subcommand stands, when it is one of [`SUBCOMMANDS`] with nothing but options of the root before it.
fn subcommand(arguments: &[OsString]) -> Option<usize> {
    let mut at = 1;
    loop {
        let argument = arguments.get(at)?.to_str()?;
        if SUBCOMMANDS.contains(&argument) {
            return Some(at);
        }
        let (name, has_value) = match argument.split_once('=') {
            Some((name, _)) => (name, true),
            None => (argument, false),
        };
        if !ROOT_OPTIONS.contains(&name) {
            return None;
        }
        at += if has_value { 1 } else { 2 };
    }
}

fn long_name(argument: &str) -> Option<String> {
    let (name, value) = match argument.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (argument, None),
    };
    let (_, long) = SHORT_OPTIONS.iter().find(|(short, _)| *short == name)?;
    Some(match value {
        Some(value) => format!("{long}={value}"),
        None => (*long).to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(line: &str) -> String {
        let arguments = line.split(' ').map(OsString::from);
        let rewritten: Vec<String> = from_pulsar_client(arguments)
            .into_iter()
            .map(|argument| argument.into_string().expect("UTF-8"))
            .collect();
        rewritten.join(" ")
    }

    #[test]
    fn options_of_several_letters_become_long_ones() {
        for (given, expected) in [
            (
                "p produce t -m a -vs string -kvkf=f",
                "p produce t -m a --value-schema string --key-value-key-file=f",
            ),
            (
                "p consume t -s x -mc 3 -n5 -mp",
                "p consume t -s x --max_chunked_msg 3 -n5 --print-metadata",
            ),
            ("p produce -- -vs", "p produce -- -vs"),
            ("p gateway -vs", "p gateway -vs"),
            ("p", "p"),
        ] {
            assert_eq!(rewritten(given), expected);
        }
    }

    #[test]
    fn connection_options_may_stand_before_the_subcommand() {
        assert_eq!(
            rewritten("p --url pulsar://b:1 -ml=1M read t"),
            "p read --url pulsar://b:1 --memory-limit=1M t"
        );
        assert_eq!(rewritten("p --url read t"), "p --url read t");
        assert_eq!(rewritten("p --other x read t"), "p --other x read t");
        assert_eq!(rewritten("p --url"), "p --url");
    }
}
