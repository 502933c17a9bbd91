//! Where requests go: the brokers' HTTP services, and which hosts are known to be brokers.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::config::ProxySettings;
use crate::naming::{WebOrigin, WebUrl};

/// Whether a host name is that of a broker, by what others know: brokers of the binary protocol, operators' patterns.
pub type KnownHosts = Arc<dyn Fn(&str) -> bool + Send + Sync>;
/// The HTTP services of brokers that were discovered.
pub(super) type Discovered = Arc<dyn Fn() -> Vec<WebUrl> + Send + Sync>;

/// The HTTP services of brokers and function workers.
pub struct WebBrokers {
    configured: Vec<WebUrl>,
    functions: Option<WebUrl>,
    discovered: Option<Discovered>,
    known_hosts: Option<KnownHosts>,
    tls: bool,
    next: AtomicUsize,
    /// Until when (since the caller's epoch) a service that could not be connected to is asked last. Bounded by the services.
    failed: Mutex<HashMap<WebOrigin, Duration>>,
}

impl fmt::Debug for WebBrokers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebBrokers")
            .field("configured", &self.configured)
            .field("functions", &self.functions)
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}

impl WebBrokers {
    /// The services of the settings: those over TLS when `tls`.
    #[must_use]
    pub fn new(settings: &ProxySettings, tls: bool) -> Self {
        let (configured, functions) = if tls {
            (&settings.brokers_tls, &settings.functions_tls)
        } else {
            (&settings.brokers, &settings.functions)
        };
        Self {
            configured: configured.clone(),
            functions: functions.clone(),
            discovered: None,
            known_hosts: None,
            tls,
            next: AtomicUsize::new(0),
            failed: Mutex::default(),
        }
    }

    /// Asks `discovered` for services where none is configured, and takes its as known.
    #[must_use]
    pub fn with_discovered(
        mut self,
        discovered: impl Fn() -> Vec<WebUrl> + Send + Sync + 'static,
    ) -> Self {
        self.discovered = Some(Arc::new(discovered));
        self
    }

    /// Takes what is at these hosts and at a port of a configured service as known.
    #[must_use]
    pub fn with_known_hosts(mut self, known: KnownHosts) -> Self {
        self.known_hosts = Some(known);
        self
    }

    /// All services of brokers, each time beginning with the next one; those that could not be reached lately come last.
    pub(super) fn in_turn(&self, now: Duration) -> Vec<WebUrl> {
        let mut brokers = match &self.discovered {
            Some(discovered) if self.configured.is_empty() => discovered(),
            _ => self.configured.clone(),
        };
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % brokers.len().max(1);
        brokers.rotate_left(turn);
        let failed = self.failed.lock();
        // Sorting keeps the order of what is equal.
        brokers.sort_by_key(|url| failed.get(&url.origin).is_some_and(|until| *until > now));
        brokers
    }

    /// The service of the function workers, where it is not the brokers'.
    pub(super) fn functions(&self) -> Option<&WebUrl> {
        self.functions.as_ref()
    }

    /// A service could not be connected to.
    pub(super) fn failed(&self, origin: &WebOrigin, now: Duration) {
        let mut failed = self.failed.lock();
        failed.retain(|_, until| *until > now);
        if failed.len() < FAILED_MAX {
            failed.insert(origin.clone(), now + FAILED_TIME);
        }
    }

    /// Whether a redirect may lead there with a client's credentials. Never from TLS to no TLS.
    pub(super) fn is_known(&self, origin: &WebOrigin) -> bool {
        if origin.tls != self.tls {
            return false;
        }
        let discovered = self.discovered.as_ref().map(|discovered| discovered());
        let discovered = discovered.unwrap_or_default();
        let services = || {
            self.configured
                .iter()
                .chain(&self.functions)
                .chain(&discovered)
        };
        if services().any(|url| url.origin == *origin) {
            return true;
        }
        services().any(|url| url.origin.port == origin.port)
            && self
                .known_hosts
                .as_ref()
                .is_some_and(|known| known(&origin.host))
    }

    /// The configured services at the port of `origin`: where one of them has the same address, it is the same server under
    /// another name, as brokers behind a name that stands for all of them are.
    pub(super) fn at_port_of(&self, origin: &WebOrigin) -> Vec<WebOrigin> {
        let services = self.configured.iter().chain(&self.functions);
        services
            .map(|url| &url.origin)
            .filter(|service| service.tls == origin.tls && service.port == origin.port)
            .cloned()
            .collect()
    }
}

/// For how long a service that could not be reached is asked last.
const FAILED_TIME: Duration = Duration::from_secs(5);
/// More services than any one cluster has.
const FAILED_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> WebUrl {
        text.parse().expect(text)
    }

    fn brokers() -> WebBrokers {
        let settings = ProxySettings {
            brokers: vec![
                url("http://a:8080"),
                url("http://b:8080"),
                url("http://c:8080"),
            ],
            brokers_tls: vec![url("https://a:8443")],
            functions: Some(url("http://f:6750")),
            ..ProxySettings::default()
        };
        WebBrokers::new(&settings, false)
    }

    fn hosts(brokers: &WebBrokers, now: u64) -> String {
        let urls = brokers.in_turn(Duration::from_secs(now));
        urls.iter().map(|url| url.origin.host.as_str()).collect()
    }

    #[test]
    fn brokers_take_turns_and_those_that_fail_come_last() {
        let brokers = brokers();
        assert_eq!(hosts(&brokers, 0), "abc");
        assert_eq!(hosts(&brokers, 0), "bca");
        brokers.failed(&url("http://c:8080").origin, Duration::ZERO);
        assert_eq!(hosts(&brokers, 1), "abc");
        assert_eq!(hosts(&brokers, 1), "abc");
        assert_eq!(hosts(&brokers, 1), "bac");
        assert_eq!(hosts(&brokers, 6), "cab");
    }

    #[test]
    fn only_known_services_get_credentials() {
        let brokers = brokers().with_known_hosts(Arc::new(|host| host == "learned"));
        for (origin, known) in [
            ("http://a:8080", true),
            ("http://f:6750", true),
            ("http://a:22", false),
            ("http://learned:8080", true),
            ("http://learned:22", false),
            ("https://a:8443", false),
            ("http://stranger:8080", false),
        ] {
            assert_eq!(brokers.is_known(&url(origin).origin), known, "{origin}");
        }
    }

    #[test]
    fn discovered_services_are_known_and_asked_where_none_is_configured() {
        let found = || vec![url("http://d:8080")];
        let with_both = brokers().with_discovered(found);
        assert!(with_both.is_known(&url("http://d:8080").origin));
        assert_eq!(hosts(&with_both, 0), "abc");
        let alone = WebBrokers::new(&ProxySettings::default(), false).with_discovered(found);
        assert_eq!(hosts(&alone, 0), "d");
    }
}
