//! What can be wrong with settings, and where.

use std::fmt;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A file, by the name it was given with.
    File {
        /// The path as given.
        path: String,
        /// Line, from 1, where it is known.
        line: Option<usize>,
    },
    /// An environment variable.
    Environment {
        /// Its full name, prefix included.
        name: String,
    },
    /// `--set KEY=VALUE`.
    Set,
    /// A flag of its own.
    Flag {
        /// The flag, dashes included.
        flag: &'static str,
    },
    /// No source: the setting is missing, or the problem is one of several values together.
    Settings,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File {
                path,
                line: Some(line),
            } => write!(f, "{path}:{line}"),
            Self::File { path, line: None } => f.write_str(path),
            Self::Environment { name } => write!(f, "environment {name}"),
            Self::Set => f.write_str("--set"),
            Self::Flag { flag } => f.write_str(flag),
            Self::Settings => f.write_str("settings"),
        }
    }
}

/// One thing that is wrong or worth a warning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where.
    pub origin: Origin,
    /// Which setting; `None` when it is about a whole file or line.
    pub key: Option<String>,
    /// What is wrong.
    pub what: String,
    /// What was expected instead, if that helps.
    pub expected: Option<String>,
}

impl Problem {
    pub(super) fn new(origin: Origin, key: &str, what: impl Into<String>) -> Self {
        Self {
            origin,
            key: Some(key.to_owned()),
            what: what.into(),
            expected: None,
        }
    }

    pub(super) fn general(origin: Origin, what: impl Into<String>) -> Self {
        Self {
            origin,
            key: None,
            what: what.into(),
            expected: None,
        }
    }

    pub(super) fn expected(mut self, expected: impl Into<String>) -> Self {
        self.expected = Some(expected.into());
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.origin)?;
        if let Some(key) = &self.key {
            write!(f, "{key}: ")?;
        }
        f.write_str(&self.what)?;
        match &self.expected {
            Some(expected) => write!(f, "; expected {expected}"),
            None => Ok(()),
        }
    }
}

/// All that is wrong with the settings, and what was noticed beside it. `Display` prints one line each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors {
    /// Never empty.
    pub problems: Vec<Problem>,
    /// What would have been a warning; often the cause, as a misspelt key.
    pub warnings: Vec<Problem>,
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.problems.len();
        let plural = if count == 1 { "" } else { "s" };
        write!(f, "the settings have {count} problem{plural}:")?;
        write_list(f, &self.problems)?;
        if !self.warnings.is_empty() {
            write!(f, "\nalso noticed:")?;
            write_list(f, &self.warnings)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

fn write_list(f: &mut fmt::Formatter<'_>, list: &[Problem]) -> fmt::Result {
    for problem in list.iter().take(SHOWN_MAX) {
        write!(f, "\n  {problem}")?;
    }
    match list.len().checked_sub(SHOWN_MAX) {
        Some(more) if more > 0 => write!(f, "\n  and {more} more"),
        _ => Ok(()),
    }
}

/// Most lines of a list that are printed: a file of another kind would give thousands.
const SHOWN_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_cut_when_printed() {
        let problems =
            vec![Problem::new(Origin::Set, "a", "is wrong").expected("b"); SHOWN_MAX + 3];
        let text = ConfigErrors {
            problems,
            warnings: Vec::new(),
        }
        .to_string();
        assert_eq!(text.lines().count(), SHOWN_MAX + 2);
        assert!(
            text.starts_with("the settings have 103 problems:\n  --set: a: is wrong; expected b\n")
        );
        assert!(text.ends_with("and 3 more"));
    }
}
