use super::*;
use crate::naming::ServiceUrl;

fn address(name: &str) -> BrokerAddress {
    BrokerAddress::from_host_port(&format!("{name}:6650")).expect(name)
}

fn announced(name: &str) -> Announced {
    Announced {
        address: Some(address(name)),
        aliases: [address(name), address(&format!("{name}.outside"))].into(),
        web: vec![format!("http://{name}:8080")],
    }
}

fn brokers(configured: &[&str], change: impl FnOnce(&mut GatewaySettings)) -> Brokers {
    let url = ServiceUrl {
        addresses: configured.iter().map(|name| address(name)).collect(),
    };
    let mut settings = GatewaySettings::for_broker(url);
    change(&mut settings);
    let policy = Arc::new(TargetPolicy::new(&settings));
    Brokers::new(&settings, policy, &MetricRegistry::new("test")).expect("metrics")
}

#[cfg(feature = "zookeeper")]
fn discovering(configured: &[&str]) -> Brokers {
    let loaded = crate::config::load_gateway(&crate::config::Sources {
        sets: vec!["metadataStoreUrl=zk:zk-1:2181".to_owned()],
        ..crate::config::Sources::default()
    });
    let store = loaded.expect("valid").settings.discovery.metadata_store;
    brokers(configured, |settings| {
        settings.discovery.metadata_store = store;
    })
}

#[tokio::test]
async fn configured_brokers_are_there_from_the_start_and_ready_when_one_answers() {
    let brokers = brokers(&["a", "b"], |_| ());
    assert_eq!(brokers.in_turn().len(), 2);
    assert!(!brokers.is_ready(), "nobody was asked yet");
    brokers.probed(&address("a"), false);
    assert!(!brokers.is_ready());
    brokers.probed(&address("b"), true);
    assert!(brokers.is_ready());
    assert_eq!(brokers.in_turn(), [address("b")]);
    brokers.tick();
    assert_eq!((brokers.known.get(), brokers.healthy.get()), (2, 1));
}

#[cfg(feature = "zookeeper")]
#[tokio::test]
async fn a_discovered_list_takes_the_place_of_the_one_before_and_an_empty_one_does_not() {
    let brokers = discovering(&[]);
    assert!(brokers.in_turn().is_empty() && !brokers.is_ready());
    brokers.on_list(vec![announced("a"), announced("b")]);
    assert_eq!(brokers.in_turn().len(), 2);
    assert!(brokers.policy.check(&address("a.outside")).is_ok());
    assert!(brokers.policy.check(&address("c")).is_err());
    brokers.probed(&address("a"), true);
    assert!(brokers.is_ready());
    brokers.on_list(vec![announced("b"), announced("c")]);
    assert!(!brokers.is_ready(), "nothing is known of these");
    let asked = |name| brokers.in_turn().contains(&address(name));
    assert!(asked("c") && !asked("a"));
    assert!(brokers.policy.check(&address("c")).is_ok());
    brokers.on_list(Vec::new());
    assert!(asked("c"));
    assert_eq!(brokers.web_in_turn().len(), 2);
}

#[cfg(feature = "zookeeper")]
#[tokio::test]
async fn where_brokers_are_configured_a_list_only_says_which_are_active() {
    let brokers = discovering(&["a"]);
    brokers.probed(&address("a"), true);
    assert!(!brokers.is_ready(), "there is no list yet");
    brokers.on_list(vec![announced("b")]);
    assert!(brokers.is_ready());
    assert_eq!(brokers.in_turn(), [address("a")]);
    assert!(brokers.policy.check(&address("b")).is_ok());
}

#[tokio::test]
async fn what_failed_decides_how_a_broker_is_left_out() {
    let brokers = brokers(&["a", "b"], |_| ());
    let fail = |error| brokers.failed(&address("a"), &ConnectError::Shared(Arc::new(error)));
    // Brokers are not to blame for these.
    fail(ConnectError::ChallengeUnsupported);
    fail(ConnectError::ClosedDuringHandshake);
    fail(ConnectError::Dial(std::io::Error::from(Errno::MFILE)));
    assert_eq!(brokers.in_turn().len(), 2);
    fail(ConnectError::Dial(
        std::io::ErrorKind::ConnectionRefused.into(),
    ));
    assert_eq!(brokers.in_turn(), [address("b")]);
    // Connecting is what failed, so a probe that is answered shows that it is over.
    brokers.probed(&address("a"), true);
    assert_eq!(brokers.in_turn().len(), 2);
    fail(ConnectError::HandshakeTimeout(Duration::from_secs(1)));
    brokers.probed(&address("a"), true);
    assert_eq!(brokers.in_turn(), [address("b")]);
    BrokerSource::connected(&brokers, &address("a"));
    assert_eq!(brokers.in_turn().len(), 2);
}
