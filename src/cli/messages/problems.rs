//! What is wrong with the arguments of one command, all of it at once.

use std::fmt::{self, Display};
use std::str::FromStr;

/// Collects what is wrong while arguments are read.
#[derive(Debug, Default)]
pub(in crate::cli) struct Problems {
    lines: Vec<String>,
}

/// All that is wrong with the arguments. `Display` prints a line for each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct WrongArguments {
    lines: Vec<String>,
}

impl Problems {
    /// Notes what is wrong with an option, named as users type it.
    pub(in crate::cli) fn add(&mut self, option: &str, what: impl Display) {
        self.lines.push(format!("{option}: {what}"));
    }

    /// Notes a value that is not accepted.
    pub(in crate::cli) fn refuse(&mut self, option: &str, value: &str, expected: impl Display) {
        self.add(
            option,
            format_args!("{value:?} is not accepted; expected {expected}"),
        );
    }

    /// Notes an option that this version does not have, if it is used.
    pub(in crate::cli) fn unsupported(&mut self, option: &str, is_used: bool, why: &str) {
        if is_used {
            self.add(option, format_args!("not supported by this version: {why}"));
        }
    }

    /// A value that has to be given.
    pub(in crate::cli) fn required<'a>(
        &mut self,
        option: &str,
        value: Option<&'a str>,
    ) -> Option<&'a str> {
        let value = value.filter(|value| !value.is_empty());
        if value.is_none() {
            self.add(option, "is missing");
        }
        value
    }

    /// A value of a type, if it is given and is `accepted`.
    pub(in crate::cli) fn value<T: FromStr>(
        &mut self,
        option: &str,
        value: Option<&str>,
        expected: &str,
        accepted: impl FnOnce(&T) -> bool,
    ) -> Option<T> {
        let value = value?;
        let parsed = value.trim().parse().ok().filter(accepted);
        if parsed.is_none() {
            self.refuse(option, value, expected);
        }
        parsed
    }

    /// One of several names, whatever its case.
    pub(in crate::cli) fn choice<T: Copy>(
        &mut self,
        option: &str,
        value: Option<&str>,
        choices: &[(&str, T)],
    ) -> Option<T> {
        let value = value?;
        let chosen = choices
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(value));
        if chosen.is_none() {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            self.refuse(option, value, names.join(", "));
        }
        chosen.map(|(_, choice)| *choice)
    }

    /// Messages a second; 0, and no value, mean as fast as possible.
    pub(in crate::cli) fn rate(&mut self, option: &str, value: Option<&str>) -> Option<f64> {
        let rate = self.value(
            option,
            value,
            "a number of messages a second",
            |rate: &f64| rate.is_finite() && *rate >= 0.0,
        );
        rate.filter(|rate| *rate > 0.0)
    }

    /// What the arguments were read into, if nothing is wrong. `value` is `None` only when a problem was noted.
    ///
    /// # Errors
    /// With everything that was noted.
    pub(in crate::cli) fn finish<T>(self, value: Option<T>) -> Result<T, WrongArguments> {
        match value {
            Some(value) if self.lines.is_empty() => Ok(value),
            _ => Err(WrongArguments { lines: self.lines }),
        }
    }
}

impl WrongArguments {
    /// The same with further problems, each of which names its place.
    pub(in crate::cli) fn and(mut self, further: impl IntoIterator<Item = impl Display>) -> Self {
        let further = further.into_iter().map(|problem| problem.to_string());
        self.lines.extend(further);
        self
    }

    /// Nothing wrong so far.
    pub(in crate::cli) fn none() -> Self {
        Self { lines: Vec::new() }
    }
}

impl Display for WrongArguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.lines.len();
        let plural = if count == 1 { "" } else { "s" };
        write!(f, "the arguments have {count} problem{plural}:")?;
        self.lines
            .iter()
            .try_for_each(|line| write!(f, "\n  {line}"))
    }
}

impl std::error::Error for WrongArguments {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_wrong_is_listed() {
        let mut problems = Problems::default();
        assert_eq!(problems.required("TOPIC", None), None);
        assert_eq!(
            problems.value("-n", Some("x"), "a number", |_: &u32| true),
            None
        );
        assert_eq!(problems.rate("-r", Some("-1")), None);
        assert_eq!(
            problems.choice("-t", Some("any"), &[("Shared", 1), ("Exclusive", 2)]),
            None
        );
        problems.unsupported("-ekv", true, "no encryption");
        problems.unsupported("-ekn", false, "no encryption");
        let error = problems.finish(Some(())).expect_err("problems");
        assert_eq!(
            error.to_string(),
            "the arguments have 5 problems:\n  TOPIC: is missing\n  -n: \"x\" is not accepted; expected a number\n  \
             -r: \"-1\" is not accepted; expected a number of messages a second\n  \
             -t: \"any\" is not accepted; expected Shared, Exclusive\n  \
             -ekv: not supported by this version: no encryption"
        );
    }

    #[test]
    fn right_values_are_taken() {
        let mut problems = Problems::default();
        assert_eq!(
            problems.value("-n", Some(" 7"), "", |_: &u32| true),
            Some(7)
        );
        assert_eq!(problems.value::<u32>("-n", None, "", |_| true), None);
        assert_eq!(problems.rate("-r", Some("0")), None);
        assert_eq!(problems.rate("-r", Some("2.5")), Some(2.5));
        assert_eq!(
            problems.choice("-t", Some("shared"), &[("Shared", 1)]),
            Some(1)
        );
        assert_eq!(problems.finish(Some(1)), Ok(1));
    }
}
