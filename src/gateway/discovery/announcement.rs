//! What a broker writes of itself below `/loadbalance/brokers`: JSON, one node per broker.
//!
//! The values are LocalBrokerData of Apache's ModularLoadManager and BrokerLookupData of its ExtensibleLoadManager, which name
//! their URLs alike. Everything else in them is skipped.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::state::Announced;
use crate::naming::BrokerAddress;

/// Why a node tells of no broker.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AnnouncementError {
    #[error("it is larger than {VALUE_MAX} bytes")]
    TooLarge,
    #[error("it is no broker's JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("it names no {0}")]
    NoUrl(&'static str),
}

/// The fields of both forms.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct BrokerData {
    pulsar_service_url: Option<String>,
    pulsar_service_url_tls: Option<String>,
    web_service_url: Option<String>,
    web_service_url_tls: Option<String>,
    #[serde(default)]
    advertised_listeners: Option<BTreeMap<String, Listener>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Listener {
    broker_service_url: Option<String>,
    broker_service_url_tls: Option<String>,
}

/// What is wanted of a broker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// Whether it is asked over TLS.
    pub(crate) tls: bool,
    /// The listener at which it is asked, where it has one of this name.
    pub(crate) listener: Option<&'a str>,
}

/// Reads the value of a node.
///
/// # Errors
/// See [`AnnouncementError`].
pub(crate) fn read(value: &[u8], wanted: Wanted<'_>) -> Result<Announced, AnnouncementError> {
    if value.len() > VALUE_MAX {
        return Err(AnnouncementError::TooLarge);
    }
    let data: BrokerData = serde_json::from_slice(value)?;
    let choose = |plain: &Option<String>, tls: &Option<String>| {
        let url = if wanted.tls { tls } else { plain };
        url.as_deref().and_then(address)
    };
    let listeners = data.advertised_listeners.unwrap_or_default();
    let listener = wanted.listener.and_then(|name| listeners.get(name));
    let address_wanted = listener
        .and_then(|listener| {
            choose(
                &listener.broker_service_url,
                &listener.broker_service_url_tls,
            )
        })
        .or_else(|| choose(&data.pulsar_service_url, &data.pulsar_service_url_tls))
        .ok_or(AnnouncementError::NoUrl(if wanted.tls {
            "pulsarServiceUrlTls"
        } else {
            "pulsarServiceUrl"
        }))?;
    let own = [&data.pulsar_service_url, &data.pulsar_service_url_tls];
    let others = listeners.values().flat_map(|listener| {
        [
            &listener.broker_service_url,
            &listener.broker_service_url_tls,
        ]
    });
    let aliases: BTreeSet<BrokerAddress> = own
        .into_iter()
        .chain(others)
        .filter_map(|url| address(url.as_deref()?))
        .take(ALIASES_MAX)
        .collect();
    let web = if wanted.tls {
        data.web_service_url_tls
    } else {
        data.web_service_url
    };
    Ok(Announced {
        address: Some(address_wanted),
        aliases,
        web: web.filter(|url| url.len() <= URL_MAX).into_iter().collect(),
    })
}

fn address(url: &str) -> Option<BrokerAddress> {
    BrokerAddress::from_url(url).ok()
}

/// Bound of a value. ZooKeeper's own is 1 MiB unless an operator raised it.
const VALUE_MAX: usize = 4 * 1024 * 1024;
/// Addresses of one broker that are kept.
const ALIASES_MAX: usize = 64;
const URL_MAX: usize = 2048;

#[cfg(test)]
mod tests {
    use super::*;

    /// As a broker of Apache Pulsar 4.0.8 writes it, shortened.
    const LOCAL_BROKER_DATA: &str = r#"{"webServiceUrl":"http://localhost:8080","webServiceUrlTls":null,
        "pulsarServiceUrl":"pulsar://localhost:6650","pulsarServiceUrlTls":"pulsar+ssl://localhost:6651",
        "persistentTopicsEnabled":true,"nonPersistentTopicsEnabled":true,"cpu":{"usage":4.5,"limit":200.0},
        "lastStats":{"public/default/0x00000000_0x40000000":{"msgRateIn":1.0}},"numTopics":0,"bundles":["a","b"],
        "startTimestamp":1,"lastUpdate":2,"brokerVersionString":"4.0.8","protocols":{},
        "advertisedListeners":{"external":{"brokerServiceUrl":"pulsar://outside:16650","brokerServiceUrlTls":null,"brokerHttpUrl":null}},
        "loadReportType":"LocalBrokerData","maxResourceUsage":0.1}"#;
    /// As the extensible load manager writes it.
    const BROKER_LOOKUP_DATA: &str = r#"{"webServiceUrl":"http://b:8080","webServiceUrlTls":"https://b:8443",
        "pulsarServiceUrl":"pulsar://b:6650","pulsarServiceUrlTls":null,"advertisedListeners":{},"protocols":{},
        "persistentTopicsEnabled":true,"nonPersistentTopicsEnabled":true,
        "loadManagerClassName":"org.apache.pulsar.broker.loadbalance.extensions.ExtensibleLoadManagerImpl",
        "startTimestamp":1,"brokerVersion":"4.0.8","properties":{}}"#;

    fn url_of(text: &str, tls: bool, listener: Option<&str>) -> Result<String, String> {
        let wanted = Wanted { tls, listener };
        match read(text.as_bytes(), wanted) {
            Ok(announced) => Ok(announced.address.expect("an address").url()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn both_load_managers_are_understood() {
        for (text, tls, listener, expected) in [
            (LOCAL_BROKER_DATA, false, None, "pulsar://localhost:6650"),
            (LOCAL_BROKER_DATA, true, None, "pulsar+ssl://localhost:6651"),
            (
                LOCAL_BROKER_DATA,
                false,
                Some("external"),
                "pulsar://outside:16650",
            ),
            (
                LOCAL_BROKER_DATA,
                false,
                Some("unheard-of"),
                "pulsar://localhost:6650",
            ),
            (
                LOCAL_BROKER_DATA,
                true,
                Some("external"),
                "pulsar+ssl://localhost:6651",
            ),
            (BROKER_LOOKUP_DATA, false, None, "pulsar://b:6650"),
        ] {
            assert_eq!(url_of(text, tls, listener).as_deref(), Ok(expected));
        }
        let error = url_of(BROKER_LOOKUP_DATA, true, None).expect_err("no TLS");
        assert_eq!(error, "it names no pulsarServiceUrlTls");
    }

    #[test]
    fn all_addresses_and_the_http_service_are_kept() {
        let wanted = Wanted {
            tls: false,
            listener: None,
        };
        let announced = read(LOCAL_BROKER_DATA.as_bytes(), wanted).expect("a broker");
        let aliases: Vec<String> = announced.aliases.iter().map(ToString::to_string).collect();
        assert_eq!(
            aliases,
            ["localhost:6650", "localhost:6651", "outside:16650"]
        );
        assert_eq!(announced.web, ["http://localhost:8080"]);
    }

    #[test]
    fn what_is_no_broker_is_an_error() {
        let wanted = Wanted {
            tls: false,
            listener: None,
        };
        for text in [
            "",
            "{",
            "[]",
            "{}",
            r#"{"pulsarServiceUrl":"http://a:1"}"#,
            r#"{"pulsarServiceUrl":7}"#,
        ] {
            assert!(read(text.as_bytes(), wanted).is_err(), "{text}");
        }
        let large = format!("{LOCAL_BROKER_DATA}{}", " ".repeat(VALUE_MAX));
        assert!(matches!(
            read(large.as_bytes(), wanted),
            Err(AnnouncementError::TooLarge)
        ));
    }
}
