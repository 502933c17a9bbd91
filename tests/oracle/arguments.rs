//! The command line.

use crate::scenario::Kind;

pub(crate) const USAGE: &str = "\
cargo test --test oracle [-- COMMAND]

  check [NAMES]                 replay the transcripts through the gateway, without Java; the default
  record [NAMES] [--target standalone|cluster]
                                run the scenarios against Apache Pulsar and write their transcripts
  show NAMES                    the same, but print the transcripts and write nothing
  drift [NAMES] [--target apache|gateway|address=HOST:PORT,http=HOST:PORT]
                                run them again and compare with the transcripts
  compare [NAMES] [--targets apache,gateway]
                                run them against two targets and compare these
  fuzz [--sequences N] [--seed S]
                                random sequences of commands against apache and gateway; differences are shrunk
  list [NAMES]

NAMES are parts of scenario names (`seek/`, `seek/by_time`); none stands for all. --jobs N: scenarios at a time (4), or
sequences (32).";

/// What to do.
#[derive(Debug, Clone)]
pub(crate) struct Arguments {
    pub(crate) verb: Verb,
    pub(crate) names: Vec<String>,
    pub(crate) jobs: Option<usize>,
    /// How many sequences, from which seed on.
    pub(crate) sequences: u64,
    pub(crate) seed: u64,
    /// Only scenarios of this kind of server.
    pub(crate) kind: Option<Kind>,
    pub(crate) targets: Vec<Target>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Check,
    Record,
    Show,
    Drift,
    Compare,
    Fuzz,
    List,
    /// What a test runner asks for to learn about tests: there is one.
    ListTests,
}

/// What scenarios run against.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// Apache Pulsar.
    Apache,
    /// Apache Pulsar behind the gateway.
    Gateway,
    /// A broker that is running.
    Address { binary: String, web: Option<String> },
}

/// Reads the command line. Options that test runners give are accepted; a word that is no command is a name to check.
pub(crate) fn parse(words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut arguments = Arguments {
        verb: Verb::Check,
        names: Vec::new(),
        jobs: None,
        sequences: 1000,
        seed: 1,
        kind: None,
        targets: Vec::new(),
    };
    let mut words = words.peekable();
    let verb = words.peek().and_then(|word| match word.as_str() {
        "check" => Some(Verb::Check),
        "record" => Some(Verb::Record),
        "show" => Some(Verb::Show),
        "drift" => Some(Verb::Drift),
        "compare" => Some(Verb::Compare),
        "fuzz" => Some(Verb::Fuzz),
        "list" => Some(Verb::List),
        _ => None,
    });
    if let Some(verb) = verb {
        arguments.verb = verb;
        words.next();
    }
    while let Some(word) = words.next() {
        let (option, given) = match word.split_once('=') {
            Some((option, given)) if option.starts_with("--") => {
                (option.to_owned(), Some(given.to_owned()))
            }
            _ => (word, None),
        };
        let mut value = || {
            given
                .clone()
                .or_else(|| words.next())
                .ok_or_else(|| format!("{option} needs a value"))
        };
        match option.as_str() {
            "--jobs" => {
                let jobs = value()?.parse().map_err(|_| "--jobs takes a number")?;
                arguments.jobs = Some(std::cmp::max(jobs, 1));
            }
            "--sequences" => {
                arguments.sequences = value()?.parse().map_err(|_| "--sequences takes a number")?;
            }
            "--seed" => arguments.seed = value()?.parse().map_err(|_| "--seed takes a number")?,
            "--target" => match value()?.as_str() {
                "standalone" => arguments.kind = Some(Kind::Standalone),
                "cluster" => arguments.kind = Some(Kind::Cluster),
                other => arguments.targets.push(target(other)?),
            },
            "--targets" => {
                for name in value()?.split(',') {
                    arguments.targets.push(target(name)?);
                }
            }
            "--list" => arguments.verb = Verb::ListTests,
            "--format" | "--test-threads" | "--color" | "--logfile" | "--skip" | "-Z" => {
                value()?;
            }
            other if other.starts_with('-') => {}
            name => arguments.names.push(name.to_owned()),
        }
    }
    Ok(arguments)
}

fn target(name: &str) -> Result<Target, String> {
    match name {
        "apache" => Ok(Target::Apache),
        "gateway" => Ok(Target::Gateway),
        _ => {
            let rest = name
                .strip_prefix("address=")
                .ok_or_else(|| format!("there is no target {name}"))?;
            let (binary, web) = match rest.split_once(",http=") {
                Some((binary, web)) => (binary, Some(format!("http://{web}"))),
                None => (rest, None),
            };
            Ok(Target::Address {
                binary: binary.to_owned(),
                web,
            })
        }
    }
}
