//! Topic and namespace names, in Pulsar's forms.

use std::fmt;
use std::str::FromStr;

use super::{MAX_NAME_PART_LEN, MAX_TOPIC_NAME_LEN, NameError, check_len, excerpt};

const PARTITION_SUFFIX: &str = "-partition-";
const DEFAULT_TENANT: &str = "public";
const DEFAULT_NAMESPACE: &str = "default";
const TOPIC_FORM: &str = "topic name: expected topic, tenant/namespace/topic or {persistent|non-persistent}://tenant/namespace/topic";

/// How a topic keeps its messages; the scheme of a full topic name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TopicDomain {
    /// `persistent`: messages are stored.
    Persistent,
    /// `non-persistent`: messages exist only in memory.
    NonPersistent,
}

impl TopicDomain {
    /// The scheme as it is written in a topic name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Persistent => "persistent",
            Self::NonPersistent => "non-persistent",
        }
    }
}

impl fmt::Display for TopicDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A tenant's namespace: `tenant/namespace`, or the old `tenant/cluster/namespace`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamespaceName {
    tenant: String,
    cluster: Option<String>,
    namespace: String,
}

impl NamespaceName {
    /// Parses `tenant/namespace` or `tenant/cluster/namespace`.
    ///
    /// # Errors
    /// When the number of parts is another one, or a part is empty, too long or holds a character other than letters,
    /// digits and `-=:._` (Pulsar's rule for named entities).
    pub fn parse(text: &str) -> Result<Self, NameError> {
        check_len("namespace name", text, MAX_TOPIC_NAME_LEN)?;
        let parts: Vec<&str> = text.splitn(4, '/').collect();
        match parts.as_slice() {
            [tenant, namespace] => Self::from_parts(tenant, None, namespace),
            [tenant, cluster, namespace] => Self::from_parts(tenant, Some(cluster), namespace),
            _ => Err(NameError::BadForm {
                text: excerpt(text),
                expected: "namespace name: expected tenant/namespace",
            }),
        }
    }

    /// The tenant.
    #[must_use]
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    /// The cluster, in names of the old form only.
    #[must_use]
    pub fn cluster(&self) -> Option<&str> {
        self.cluster.as_deref()
    }

    /// The last part, without tenant.
    #[must_use]
    pub fn local_name(&self) -> &str {
        &self.namespace
    }

    fn from_parts(tenant: &str, cluster: Option<&str>, namespace: &str) -> Result<Self, NameError> {
        check_part("tenant", tenant)?;
        if let Some(cluster) = cluster {
            check_part("cluster", cluster)?;
        }
        check_part("namespace", namespace)?;
        Ok(Self {
            tenant: tenant.to_owned(),
            cluster: cluster.map(str::to_owned),
            namespace: namespace.to_owned(),
        })
    }
}

impl FromStr for NamespaceName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::parse(text)
    }
}

impl fmt::Display for NamespaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cluster {
            None => write!(f, "{}/{}", self.tenant, self.namespace),
            Some(cluster) => write!(f, "{}/{cluster}/{}", self.tenant, self.namespace),
        }
    }
}

/// A topic: domain, namespace and local name. `Display` prints the full name.
///
/// A partition of a partitioned topic is a topic of its own whose local name ends in `-partition-N`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicName {
    domain: TopicDomain,
    namespace: NamespaceName,
    local_name: String,
}

impl TopicName {
    /// Parses every form that clients use: `topic` (in `public/default`), `tenant/namespace/topic`,
    /// `persistent://tenant/namespace/topic`, `non-persistent://..`, and the old form with a cluster,
    /// `persistent://tenant/cluster/namespace/topic`, whose topic part alone may hold slashes.
    ///
    /// # Errors
    /// When the text has none of these forms, a part is empty or too long, or tenant, cluster or namespace hold a
    /// character other than letters, digits and `-=:._`.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        check_len("topic name", text, MAX_TOPIC_NAME_LEN)?;
        let bad_form = || NameError::BadForm {
            text: excerpt(text),
            expected: TOPIC_FORM,
        };
        let Some((scheme, rest)) = text.split_once("://") else {
            let parts: Vec<&str> = text.split('/').collect();
            return match parts.as_slice() {
                [local_name] => {
                    let namespace =
                        NamespaceName::from_parts(DEFAULT_TENANT, None, DEFAULT_NAMESPACE)?;
                    Self::from_parts(TopicDomain::Persistent, namespace, local_name)
                }
                [tenant, namespace, local_name] => {
                    let namespace = NamespaceName::from_parts(tenant, None, namespace)?;
                    Self::from_parts(TopicDomain::Persistent, namespace, local_name)
                }
                _ => Err(bad_form()),
            };
        };
        let domain = match scheme {
            "persistent" => TopicDomain::Persistent,
            "non-persistent" => TopicDomain::NonPersistent,
            _ => {
                return Err(NameError::UnknownScheme {
                    text: excerpt(text),
                    expected: "persistent:// or non-persistent://",
                });
            }
        };
        let parts: Vec<&str> = rest.splitn(4, '/').collect();
        match parts.as_slice() {
            [tenant, namespace, local_name] => Self::from_parts(
                domain,
                NamespaceName::from_parts(tenant, None, namespace)?,
                local_name,
            ),
            [tenant, cluster, namespace, local_name] => Self::from_parts(
                domain,
                NamespaceName::from_parts(tenant, Some(cluster), namespace)?,
                local_name,
            ),
            _ => Err(bad_form()),
        }
    }

    /// Whether messages are stored.
    #[must_use]
    pub const fn domain(&self) -> TopicDomain {
        self.domain
    }

    /// The tenant.
    #[must_use]
    pub fn tenant(&self) -> &str {
        self.namespace.tenant()
    }

    /// Tenant and namespace.
    #[must_use]
    pub const fn namespace(&self) -> &NamespaceName {
        &self.namespace
    }

    /// The name within the namespace, the partition suffix included. Never empty.
    #[must_use]
    pub fn local_name(&self) -> &str {
        &self.local_name
    }

    /// The number of the partition, when the name is that of a partition.
    ///
    /// Only the form that Pulsar itself writes counts (`-partition-7`, not `-partition-07`), up to `i32::MAX`.
    #[must_use]
    pub fn partition(&self) -> Option<u32> {
        self.split_partition().map(|(_, partition)| partition)
    }

    /// The partitioned topic that this partition belongs to; the topic itself when it is no partition.
    #[must_use]
    pub fn partitioned_topic(&self) -> Self {
        let local_name = self
            .split_partition()
            .map_or(self.local_name.as_str(), |(base, _)| base);
        Self {
            domain: self.domain,
            namespace: self.namespace.clone(),
            local_name: local_name.to_owned(),
        }
    }

    fn from_parts(
        domain: TopicDomain,
        namespace: NamespaceName,
        local_name: &str,
    ) -> Result<Self, NameError> {
        if local_name.trim().is_empty() {
            return Err(NameError::Empty { what: "topic" });
        }
        Ok(Self {
            domain,
            namespace,
            local_name: local_name.to_owned(),
        })
    }

    fn split_partition(&self) -> Option<(&str, u32)> {
        let (base, digits) = self.local_name.rsplit_once(PARTITION_SUFFIX)?;
        let canonical = digits == "0" || !digits.starts_with('0');
        if base.is_empty() || !canonical || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let partition: i32 = digits.parse().ok()?;
        Some((base, u32::try_from(partition).ok()?))
    }
}

impl FromStr for TopicName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::parse(text)
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}://{}/{}",
            self.domain, self.namespace, self.local_name
        )
    }
}

fn check_part(what: &'static str, text: &str) -> Result<(), NameError> {
    if text.is_empty() {
        return Err(NameError::Empty { what });
    }
    check_len(what, text, MAX_NAME_PART_LEN)?;
    let allowed =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'=' | b':' | b'.' | b'_');
    if text.bytes().all(allowed) {
        Ok(())
    } else {
        Err(NameError::BadCharacter {
            what,
            text: excerpt(text),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn full(text: &str) -> String {
        TopicName::parse(text).expect(text).to_string()
    }

    #[test]
    fn completes_short_names() {
        assert_eq!(full("x"), "persistent://public/default/x");
        assert_eq!(full("t/n/x"), "persistent://t/n/x");
        assert_eq!(full("persistent://t/n/x"), "persistent://t/n/x");
        assert_eq!(full("non-persistent://t/n/x"), "non-persistent://t/n/x");
        assert_eq!(full("persistent://p/c/n/x"), "persistent://p/c/n/x");
        assert_eq!(full("persistent://p/c/n/x/y"), "persistent://p/c/n/x/y");
        let with_cluster = TopicName::parse("persistent://p/c/n/x/y").expect("old form");
        assert_eq!(with_cluster.namespace().cluster(), Some("c"));
        assert_eq!(with_cluster.local_name(), "x/y");
        assert_eq!(
            full("a topic with spaces, %2F and \u{e4}"),
            "persistent://public/default/a topic with spaces, %2F and \u{e4}"
        );
    }

    #[test]
    fn refuses_malformed_topic_names() {
        for text in [
            "",
            " ",
            "a/b",
            "a/b/c/d",
            "t/n/",
            "persistent://",
            "persistent://t",
            "persistent://t/n",
            "persistent://t/n/",
            "persistent:///n/x",
            "persistent://t//x",
            "persistent://t/n%/x",
            "memory://t/n/x",
            "Persistent://t/n/x",
            "://x",
        ] {
            assert!(TopicName::parse(text).is_err(), "{text:?}");
        }
        assert!(matches!(
            TopicName::parse(&"x".repeat(MAX_TOPIC_NAME_LEN + 1)),
            Err(NameError::TooLong { .. })
        ));
    }

    #[test]
    fn reads_partition_numbers_as_pulsar_writes_them() {
        let cases = [
            ("x-partition-0", Some(0), "x"),
            ("x-partition-12", Some(12), "x"),
            ("x-partition-1-partition-2", Some(2), "x-partition-1"),
            ("x-partition-2147483647", Some(2_147_483_647), "x"),
            ("x-partition-2147483648", None, "x-partition-2147483648"),
            ("x-partition-01", None, "x-partition-01"),
            ("x-partition-", None, "x-partition-"),
            ("x-partition--1", None, "x-partition--1"),
            ("x-partition-+1", None, "x-partition-+1"),
            ("x-partition-1-DLQ", None, "x-partition-1-DLQ"),
            ("x", None, "x"),
        ];
        for (text, partition, base) in cases {
            let topic = TopicName::parse(text).expect(text);
            assert_eq!(topic.partition(), partition, "{text}");
            assert_eq!(topic.partitioned_topic().local_name(), base, "{text}");
        }
    }

    #[test]
    fn namespaces_have_two_or_three_parts() {
        for text in ["t/n", "t/c/n", "a=b:c.d_e-f/n"] {
            assert_eq!(NamespaceName::parse(text).expect(text).to_string(), text);
        }
        for text in ["", "t", "t/", "/n", "t/n/", "a/b/c/d", "t/n x", "t/\u{e4}"] {
            assert!(NamespaceName::parse(text).is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn printed_names_parse_back(
            persistent: bool, tenant in "[-=:.\\w&&[ -~]]{1,8}", namespace in "[-=:.\\w&&[ -~]]{1,8}",
            local in "[^/\\s][^/]{0,20}", partition: Option<u16>,
        ) {
            let domain = if persistent { "persistent" } else { "non-persistent" };
            let suffix = partition.map(|number| format!("-partition-{number}")).unwrap_or_default();
            let text = format!("{domain}://{tenant}/{namespace}/{local}{suffix}");
            let topic = TopicName::parse(&text).expect("well-formed");
            prop_assert_eq!(topic.to_string(), text);
            if let Some(number) = partition {
                prop_assert_eq!(topic.partition(), Some(u32::from(number)));
                let partitioned = topic.partitioned_topic();
                prop_assert_eq!(partitioned.local_name(), local);
            }
        }

        #[test]
        fn any_text_gives_a_stable_name_or_an_error(text in "\\PC{0,60}|[a-z:/-]{0,30}") {
            if let Ok(topic) = TopicName::parse(&text) {
                prop_assert_eq!(TopicName::parse(&topic.to_string()), Ok(topic));
            }
            if let Ok(namespace) = NamespaceName::parse(&text) {
                prop_assert_eq!(NamespaceName::parse(&namespace.to_string()), Ok(namespace));
            }
        }
    }
}
