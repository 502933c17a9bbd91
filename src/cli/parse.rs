//! The parser's errors, all of them at once.
//!
//! The parser stops at its first error. An error of a single argument is noted here, the argument is taken out, and the rest is
//! parsed again, until there is nothing of this kind; so users are told everything, with what the command itself finds wrong.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use clap::{Arg, ArgMatches, Command};

use super::problems::Problems;

/// What was found in arguments besides what the parser made of them.
#[derive(Debug, Default)]
pub(super) struct Faults {
    pub(super) problems: Problems,
    /// Whether a flag is unknown. What looks like a topic may be a value of it.
    pub(super) has_unknown: bool,
}

impl Faults {
    /// Notes a flag that there is not.
    pub(super) fn unknown(&mut self, line: String) {
        self.problems.note(line);
        self.has_unknown = true;
    }

    /// Adds what the command finds wrong with the arguments that were left, but for topics that may be none.
    pub(super) fn append(&mut self, lines: Vec<String>) {
        let is_doubtful =
            |line: &String| line.starts_with("TOPIC: \"") || line.starts_with("--num-topics:");
        for line in lines {
            if !(self.has_unknown && is_doubtful(&line)) {
                self.problems.note(line);
            }
        }
    }
}

/// Lets every option take a negative number as its value: what is wrong with it is better told than that it is no value.
pub(super) fn with_negative_numbers(command: Command) -> Command {
    let allow = |arg: Arg| {
        let is_option = !arg.is_positional() && arg.get_action().takes_values();
        if is_option {
            arg.allow_negative_numbers(true)
        } else {
            arg
        }
    };
    command
        .mut_args(allow)
        .mut_subcommands(with_negative_numbers)
}

/// Parses arguments, the program's name first. Errors of single arguments go to `faults`; `describe` makes the line of an
/// unknown flag.
///
/// # Errors
/// What is no error of an argument: that help was asked for, that the subcommand is unknown or missing.
pub(super) fn parse(
    command: &Command,
    mut arguments: Vec<OsString>,
    faults: &mut Faults,
    describe: fn(&str) -> String,
) -> Result<ArgMatches, Error> {
    let mut rounds = 0;
    loop {
        let error = match command.clone().try_get_matches_from(&arguments) {
            Ok(matches) => return Ok(matches),
            Err(error) => error,
        };
        let before = arguments.clone();
        let mut repair = Repair {
            command,
            arguments: &mut arguments,
            faults,
        };
        repair.take_out(&error, describe);
        rounds += 1;
        if arguments == before || rounds >= ROUNDS_MAX {
            return Err(error);
        }
    }
}

/// Takes one argument out.
struct Repair<'a> {
    command: &'a Command,
    arguments: &'a mut Vec<OsString>,
    faults: &'a mut Faults,
}

impl Repair<'_> {
    /// Changes nothing where the error is none of a single argument, or its place is not found.
    fn take_out(&mut self, error: &Error, describe: fn(&str) -> String) {
        let named = context(error, ContextKind::InvalidArg).unwrap_or_default();
        let value = context(error, ContextKind::InvalidValue).unwrap_or_default();
        match error.kind() {
            ErrorKind::UnknownArgument => self.unknown(named, describe),
            ErrorKind::InvalidUtf8 => self.not_text(),
            ErrorKind::InvalidValue if value.is_empty() => self.without_value(named),
            ErrorKind::ValueValidation => {
                let why = std::error::Error::source(error).map(ToString::to_string);
                let why = why.unwrap_or_else(|| format!("{value:?} is not accepted"));
                self.option(named, &why);
            }
            ErrorKind::ArgumentConflict => self.option(named, "is given more than once"),
            ErrorKind::TooManyValues => self.option(named, "takes no value"),
            _ => {}
        }
    }

    fn unknown(&mut self, name: &str, describe: fn(&str) -> String) {
        if !name.starts_with('-') {
            // Behind an unknown flag it is probably its value, and one line is enough for both.
            if !self.faults.has_unknown {
                self.faults
                    .problems
                    .note(format!("{name:?}: one argument too many"));
            }
            if let Some(at) = self.arguments.iter().rposition(|other| other == name) {
                self.arguments.remove(at);
            }
            return;
        }
        let is_it = |argument: &OsString| {
            let text = argument.to_string_lossy();
            // Of letters behind one dash the unknown one is named alone.
            is_spelled(&text, name)
                || (name.len() == 2
                    && text.starts_with('-')
                    && !text.starts_with("--")
                    && text.contains(name.trim_start_matches('-')))
        };
        if let Some(at) = self.arguments.iter().position(is_it) {
            let removed = self.arguments.remove(at);
            let removed = removed.to_string_lossy();
            let name = removed.split('=').next().unwrap_or_default();
            self.faults.unknown(describe(name));
        }
    }

    /// Arguments that are no UTF-8, but for paths of files that need not be.
    fn not_text(&mut self) {
        let mut is_path = false;
        for (number, argument) in self.arguments.iter_mut().enumerate() {
            let text = argument.to_string_lossy().into_owned();
            let names_path = |option: &&str| text.starts_with(&format!("{option}="));
            let is_path_here = is_path || PATH_OPTIONS.iter().any(names_path);
            is_path = PATH_OPTIONS.contains(&text.as_str());
            if argument.to_str().is_none() && !is_path_here {
                self.faults
                    .problems
                    .note(format!("argument {number}, {text:?}: is not UTF-8"));
                *argument = text.into();
            }
        }
    }

    /// An option at the end, or before another one.
    fn without_value(&mut self, named: &str) {
        let spellings = self.spellings(named);
        let followers = self.arguments.iter().skip(1).map(Some).chain([None]);
        let at = self
            .arguments
            .iter()
            .zip(followers)
            .position(|(argument, next)| {
                let text = argument.to_string_lossy();
                let has_none = next.is_none_or(|next| next.to_string_lossy().starts_with('-'));
                spellings.iter().any(|spelling| {
                    *text == *spelling && has_none || *text == format!("{spelling}=")
                })
            });
        if let Some(at) = at {
            self.arguments.remove(at);
            self.faults
                .problems
                .add(option_name(named), "its value is missing");
        }
    }

    /// The last place of an option, with its value.
    fn option(&mut self, named: &str, what: &str) {
        let spellings = self.spellings(named);
        let is_it = |argument: &OsString| {
            let text = argument.to_string_lossy();
            spellings.iter().any(|spelling| is_spelled(&text, spelling))
        };
        let end = self.arguments.iter().position(|other| other == "--");
        let end = end.unwrap_or(self.arguments.len());
        let options = self.arguments.get(..end).unwrap_or_default();
        let Some(at) = options.iter().rposition(is_it) else {
            self.of_environment(named, what);
            return;
        };
        let removed = self.arguments.remove(at);
        let is_alone = spellings.iter().any(|spelling| removed == **spelling);
        if is_alone && self.takes_value(named) && at < self.arguments.len() {
            self.arguments.remove(at);
        }
        self.faults.problems.add(option_name(named), what);
    }

    /// A value that no argument gave, but a variable. Its default takes its place, so that the rest can be parsed.
    fn of_environment(&mut self, named: &str, what: &str) {
        let (at, arg) = self.locate(named);
        let Some(arg) = arg else { return };
        let default = arg.get_default_values().first();
        if let (Some(variable), Some(long), Some(default)) =
            (arg.get_env(), arg.get_long(), default)
        {
            let mut argument = OsString::from(format!("--{long}="));
            argument.push(default);
            let place = format!("environment {}", variable.to_string_lossy());
            self.arguments.insert(at, argument);
            self.faults.problems.add(&place, what);
        }
    }

    fn takes_value(&self, named: &str) -> bool {
        let arg = self.find(named);
        arg.is_some_and(|arg| arg.get_action().takes_values())
    }

    /// All names of an option that is named as the parser does.
    fn spellings(&self, named: &str) -> Vec<String> {
        let Some(arg) = self.find(named) else {
            return vec![option_name(named).to_owned()];
        };
        let aliases = arg.get_all_aliases().unwrap_or_default();
        let longs = arg.get_long().into_iter().chain(aliases);
        let longs = longs.map(|long| format!("--{long}"));
        let shorts = arg
            .get_short_and_visible_aliases()
            .unwrap_or_else(|| arg.get_short().into_iter().collect());
        let shorts = shorts.into_iter().map(|short| format!("-{short}"));
        longs.chain(shorts).collect()
    }

    fn find(&self, named: &str) -> Option<&Arg> {
        self.locate(named).1
    }

    /// The option of this name, and where the arguments of its subcommand begin.
    fn locate(&self, named: &str) -> (usize, Option<&Arg>) {
        let name = option_name(named);
        let (mut begin, mut command) = (1, self.command);
        for (at, argument) in self.arguments.iter().enumerate().skip(1) {
            let text = argument.to_string_lossy();
            if let Some(subcommand) = command.find_subcommand(&*text) {
                (begin, command) = (at + 1, subcommand);
            }
        }
        let long = name.strip_prefix("--");
        let short = name.strip_prefix('-').and_then(|rest| rest.chars().next());
        let arg = command.get_arguments().find(|arg| match long {
            Some(long) => arg.get_long() == Some(long),
            None => short.is_some() && arg.get_short() == short,
        });
        (begin, arg)
    }
}

/// `--rate <N>` and `--flag[=<X>]` without what is behind the name.
fn option_name(named: &str) -> &str {
    named.split([' ', '=', '[']).next().unwrap_or_default()
}

/// Whether an argument is this option, with or without a value behind it.
fn is_spelled(text: &str, spelling: &str) -> bool {
    match text.strip_prefix(spelling) {
        Some(rest) => rest.is_empty() || rest.starts_with('=') || !spelling.starts_with("--"),
        None => false,
    }
}

fn context(error: &Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text),
        _ => None,
    }
}

/// As often arguments are parsed again: each time takes as long as there are many.
const ROUNDS_MAX: usize = 100;
/// Options whose values are paths, which may hold any bytes.
const PATH_OPTIONS: &[&str] = &["--config", "--conf-file"];

#[cfg(test)]
mod tests {
    use clap::ArgAction;

    use super::*;

    fn command() -> Command {
        let number = |text: &str| text.parse::<u8>();
        with_negative_numbers(
            Command::new("x").subcommand(
                Command::new("go")
                    .arg(Arg::new("size").short('s').long("size").alias("big"))
                    .arg(Arg::new("rate").short('r').long("rate"))
                    .arg(Arg::new("level").long("level").value_parser(number))
                    .arg(Arg::new("json").long("json").action(ArgAction::SetTrue))
                    .arg(Arg::new("topic")),
            ),
        )
    }

    fn parsed(line: &[&str]) -> (Result<ArgMatches, Error>, Vec<String>) {
        let arguments = ["x", "go"].iter().chain(line).map(OsString::from);
        let mut faults = Faults::default();
        let parsed = parse(&command(), arguments.collect(), &mut faults, |name| {
            format!("{name}: unknown flag")
        });
        (parsed, faults.problems.into_wrong().into_lines())
    }

    #[test]
    fn everything_wrong_is_found_and_the_rest_is_parsed() {
        let (parsed, problems) = parsed(&[
            "--nope=7", "-q", "--rate", "--level", "300", "-s", "-1", "--json", "--json", "t", "u",
            "--big", "3",
        ]);
        let matches = parsed.expect("the rest");
        let (_, go) = matches.subcommand().expect("go");
        assert_eq!(go.get_one::<String>("topic").map(String::as_str), Some("t"));
        assert_eq!(go.get_one::<String>("size").map(String::as_str), Some("-1"));
        for expected in [
            "--nope: unknown flag",
            "-q: unknown flag",
            "--rate: its value is missing",
            "--level: number too large to fit in target type",
            "--json: is given more than once",
            "--size: is given more than once",
        ] {
            assert!(problems.iter().any(|line| line == expected), "{problems:?}");
        }
        assert_eq!(problems.len(), 6, "{problems:?}");
    }

    #[test]
    fn an_argument_too_many_is_told_where_no_flag_is_unknown() {
        let (parsed, problems) = parsed(&["t", "u", "--json=1", "-r"]);
        assert!(parsed.is_ok());
        assert_eq!(problems.len(), 3, "{problems:?}");
        assert!(problems.contains(&"\"u\": one argument too many".to_owned()));
        assert!(problems.contains(&"--json: takes no value".to_owned()));
        assert!(problems.contains(&"--rate: its value is missing".to_owned()));
    }

    #[test]
    fn what_is_no_error_of_an_argument_is_returned() {
        let (parsed, problems) = parsed(&["--help"]);
        assert!(!parsed.expect_err("help").use_stderr());
        assert!(problems.is_empty());
    }

    #[test]
    fn an_argument_that_is_no_text_is_named() {
        use std::os::unix::ffi::OsStringExt as _;
        let arguments = vec![
            "x".into(),
            "go".into(),
            "--size".into(),
            OsString::from_vec(b"t\xff".to_vec()),
        ];
        let mut faults = Faults::default();
        let parsed = parse(&command(), arguments, &mut faults, ToOwned::to_owned);
        assert!(parsed.is_ok());
        assert_eq!(
            faults.problems.into_wrong().into_lines(),
            ["argument 3, \"t\u{fffd}\": is not UTF-8"]
        );
    }
}
