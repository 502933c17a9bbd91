//! All sources merged: one text a setting, with its origin.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use super::keys::{KeySpec, KeyStatus};
use super::problem::{Origin, Problem};
use super::source_file::{self, Entry, FileFormat};

/// Where settings come from, later ones winning: defaults, file, environment, `--set`, flags.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sources {
    /// `--config FILE`: YAML, or Apache Pulsar's key=value form.
    pub file: Option<PathBuf>,
    /// The environment. Only `PULSAR_PREFIX_<setting>` and `PULSEGATE_<setting>` are looked at, the latter
    /// winning; names in capitals only are no settings.
    pub environment: Vec<(String, String)>,
    /// The arguments of `--set`, each `KEY=VALUE`.
    pub sets: Vec<String>,
    /// Flags that stand for one setting each.
    pub flags: Vec<FlagValue>,
}

/// A flag that gives a setting its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlagValue {
    /// The flag, dashes included.
    pub flag: &'static str,
    /// The setting.
    pub key: &'static str,
    /// The value.
    pub value: String,
}

/// The text of a setting and where it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RawValue {
    /// Trimmed.
    pub(super) text: String,
    pub(super) origin: Origin,
    /// Whether it stands in an Apache key=value file.
    pub(super) apache_file: bool,
}

/// All settings that some source names, by their name; deprecated names are folded into the real ones.
#[derive(Debug)]
pub(super) struct RawSettings {
    /// The settings that there are.
    keys: &'static [KeySpec],
    pub(super) values: BTreeMap<&'static str, RawValue>,
    /// Values by names that are no settings, the last of each: a prefix may make settings of them.
    pub(super) unknown: BTreeMap<String, RawValue>,
    /// Names given that match a family (`brokerClient_*`), with their values.
    pub(super) families: BTreeMap<String, RawValue>,
    pub(super) problems: Vec<Problem>,
    pub(super) warnings: Vec<Problem>,
}

/// How a source takes names that are no setting.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unknown {
    Refused,
    /// Plugins of Apache Pulsar read settings of their own from its files.
    Reported,
}

impl RawSettings {
    /// Reads and merges all sources of these settings.
    pub(super) fn collect(sources: &Sources, keys: &'static [KeySpec]) -> Self {
        let mut raw = Self {
            keys,
            values: BTreeMap::new(),
            unknown: BTreeMap::new(),
            families: BTreeMap::new(),
            problems: Vec::new(),
            warnings: Vec::new(),
        };
        if let Some(path) = &sources.file
            && let Some(file) = source_file::read(path, &mut raw.problems)
        {
            raw.add_file(&path.display().to_string(), file.format, file.entries);
        }
        for (prefix, unknown) in [
            (APACHE_PREFIX, Unknown::Reported),
            (OUR_PREFIX, Unknown::Refused),
        ] {
            for (name, value) in &sources.environment {
                let Some(key) = name.strip_prefix(prefix).filter(|key| is_setting_like(key)) else {
                    continue;
                };
                // One environment may serve several roles. What is another's setting is no mistake, unless it looks like one of
                // this role's.
                let others = KeySpec::find(keys, key).is_none() && is_any_roles(key);
                if others && KeySpec::suggest(keys, key).is_none() {
                    continue;
                }
                let unknown = if others { Unknown::Reported } else { unknown };
                raw.add(
                    key,
                    value,
                    Origin::Environment { name: name.clone() },
                    unknown,
                );
            }
        }
        for set in &sources.sets {
            match set.split_once('=') {
                Some((key, value)) if !key.trim().is_empty() => {
                    raw.add(key.trim(), value, Origin::Set, Unknown::Refused)
                }
                _ => raw.problems.push(
                    Problem::general(Origin::Set, "the argument has no setting before a =")
                        .expected("KEY=VALUE"),
                ),
            }
        }
        for FlagValue { flag, key, value } in &sources.flags {
            raw.add(key, value, Origin::Flag { flag }, Unknown::Refused);
        }
        raw.fold_aliases();
        raw.report_without_effect();
        raw
    }

    fn add_file(&mut self, path: &str, format: FileFormat, entries: Vec<Entry>) {
        let unknown = match format {
            FileFormat::Properties => Unknown::Reported,
            FileFormat::Yaml => Unknown::Refused,
        };
        let mut seen: HashMap<String, (String, Option<usize>)> = HashMap::new();
        for Entry { key, value, line } in entries {
            let origin = Origin::File {
                path: path.to_owned(),
                line,
            };
            let Some((first_value, first_line)) = seen.get(&key) else {
                self.add(&key, &value, origin, unknown);
                if format == FileFormat::Properties
                    && let Some(raw) = KeySpec::find(self.keys, &key)
                        .and_then(|spec| self.values.get_mut(spec.name))
                {
                    raw.apache_file = true;
                }
                seen.insert(key, (value, line));
                continue;
            };
            let first = first_line
                .map(|line| format!(" (first on line {line})"))
                .unwrap_or_default();
            // A repetition changes nothing, and Apache Pulsar reads such a file; two values are a mistake.
            let repeated = format == FileFormat::Properties && value.trim() == first_value.trim();
            let problem = Problem::new(
                origin,
                &shown(&key),
                format!("the setting is given twice{first}"),
            );
            if repeated {
                &mut self.warnings
            } else {
                &mut self.problems
            }
            .push(problem);
        }
    }

    fn add(&mut self, key: &str, value: &str, origin: Origin, unknown: Unknown) {
        let raw = RawValue {
            text: value.trim().to_owned(),
            origin,
            apache_file: false,
        };
        let Some(spec) = KeySpec::find(self.keys, key) else {
            let mut problem = Problem::new(raw.origin.clone(), &shown(key), "unknown setting");
            self.unknown.insert(key.to_owned(), raw);
            if let Some(near) = KeySpec::suggest(self.keys, key) {
                problem.what = format!("unknown setting (did you mean {near}?)");
            }
            if unknown == Unknown::Refused {
                &mut self.problems
            } else {
                &mut self.warnings
            }
            .push(problem);
            return;
        };
        if spec.name.ends_with('*') {
            self.families.insert(key.to_owned(), raw);
        } else {
            self.values.insert(spec.name, raw);
        }
    }

    /// Gives each deprecated name's value to the real setting, unless that has one.
    fn fold_aliases(&mut self) {
        for spec in self.keys {
            let KeyStatus::AliasOf(target) = spec.status else {
                continue;
            };
            let Some(value) = self.values.remove(spec.name) else {
                continue;
            };
            if spec.is_default(&value.text) {
                continue;
            }
            let wins = self
                .values
                .get(target)
                .is_none_or(|current| current.text.is_empty());
            let note = if wins {
                format!("deprecated name of {target}")
            } else {
                format!("deprecated name of {target}, which has a value of its own and wins")
            };
            self.warnings
                .push(Problem::new(value.origin.clone(), spec.name, note));
            if wins {
                self.values.insert(target, value);
            }
        }
    }

    fn report_without_effect(&mut self) {
        let named = self.values.iter().filter_map(|(name, value)| {
            let spec = KeySpec::find(self.keys, name)?;
            (spec.status == KeyStatus::NoEffect && !spec.is_default(&value.text))
                .then(|| (*name).to_owned())
        });
        let of_families = self.families.keys().filter(|name| {
            KeySpec::find(self.keys, name).is_some_and(|spec| spec.status == KeyStatus::NoEffect)
        });
        let names: Vec<String> = named.chain(of_families.map(|name| shown(name))).collect();
        if !names.is_empty() {
            let what = format!(
                "accepted, but without effect in this version: {}",
                names.join(", ")
            );
            self.warnings.push(Problem::general(Origin::Settings, what));
        }
    }
}

/// Whether some role has a setting of this name.
fn is_any_roles(key: &str) -> bool {
    [super::GATEWAY_KEYS, super::CLIENT_KEYS]
        .into_iter()
        .any(|keys| KeySpec::find(keys, key).is_some())
}

/// Whether a variable's name after its prefix can be meant as a setting. Settings have lower-case letters; variables in
/// capitals are others' or ours: Kubernetes gives every container `PULSEGATE_PORT` and the like beside a service of the
/// name pulsegate, and `PULSEGATE_LOG` is the log level.
fn is_setting_like(key: &str) -> bool {
    key.bytes().any(|byte| byte.is_ascii_lowercase())
}

/// A name in a message: strangers' names are cut and cannot break the line.
fn shown(key: &str) -> String {
    const SHOWN: usize = 80;
    let short: String = key.chars().take(SHOWN).collect();
    let dots = if short.len() < key.len() { "..." } else { "" };
    format!("{}{dots}", short.escape_debug())
}

const APACHE_PREFIX: &str = "PULSAR_PREFIX_";
const OUR_PREFIX: &str = "PULSEGATE_";
