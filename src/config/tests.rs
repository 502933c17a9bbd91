//! Tables of good and bad settings.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::naming::AddressRange;

const BROKER: &str = "brokerServiceURL=pulsar://b:1";

struct Directory(TempDir);

impl Directory {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("temporary directory"))
    }

    fn file(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, text).expect("write");
        path
    }
}

fn with_file(name: &str, text: impl AsRef<[u8]>) -> Result<LoadedGateway, ConfigErrors> {
    let directory = Directory::new();
    load_gateway(&Sources {
        file: Some(directory.file(name, text)),
        ..Sources::default()
    })
}

fn with_sets(sets: &[&str]) -> Result<LoadedGateway, ConfigErrors> {
    let sets = sets.iter().map(|set| (*set).to_owned()).collect();
    load_gateway(&Sources {
        sets,
        ..Sources::default()
    })
}

fn settings(sets: &[&str]) -> GatewaySettings {
    let sets: Vec<&str> = [BROKER].iter().chain(sets).copied().collect();
    with_sets(&sets)
        .unwrap_or_else(|errors| panic!("{sets:?}: {errors}"))
        .settings
}

/// Problems as `line key: what`, without the path.
fn found(errors: &ConfigErrors) -> Vec<String> {
    errors.problems.iter().map(short).collect()
}

fn short(problem: &Problem) -> String {
    let place = match &problem.origin {
        Origin::File {
            line: Some(line), ..
        } => line.to_string(),
        Origin::File { line: None, .. } => "file".to_owned(),
        other => other.to_string(),
    };
    format!(
        "{place} {}: {}",
        problem.key.as_deref().unwrap_or("-"),
        problem.what
    )
}

#[test]
fn defaults_are_those_of_the_apache_proxy() {
    let broker: crate::naming::ServiceUrl = "pulsar://b:1".parse().expect("url");
    assert_eq!(settings(&[]), GatewaySettings::for_broker(broker));
}

#[test]
fn values_become_types() {
    let read = settings(&[
        "brokerServiceURL=pulsar://b1:1,b2:2",
        "brokerWebServiceURL=http://b1:8080,http://[::1]:80/base",
        "bindAddress=[::1]",
        "servicePort=0",
        "webServicePort=",
        "advertisedAddress=Gate.example",
        "clusterName= east ",
        "brokerProxyConnectTimeoutMs=0",
        "brokerProxyReadTimeoutMs=0",
        "keepAliveIntervalSeconds=0",
        "maxMessageSize=1048576",
        "maxConcurrentInboundConnections=-1",
        "maxConcurrentInboundConnectionsPerIp=7",
        "brokerProxyAllowedHostNames=*.example, b1",
        "brokerProxyAllowedIPAddresses=10.0.0.0/8,::1",
        "brokerProxyAllowedTargetPorts=6650,6652",
        "gatewayNotReadySeconds=5",
        "gatewayDrainTimeoutSeconds=20",
        "statusFilePath=/tmp/status",
        "enableProxyStatsEndpoints=FALSE",
        "maxHttpServerConnections=0",
        "httpMaxRequestHeaderSize=100",
        "httpServerIdleTimeout=1500",
    ]);
    assert_eq!(read.broker.to_string(), "pulsar://b1:1,b2:2");
    let web: Vec<String> = read.proxy.brokers.iter().map(ToString::to_string).collect();
    assert_eq!(web, ["http://b1:8080", "http://[::1]:80/base"]);
    assert_eq!(read.bind_address, IpAddr::V6(Ipv6Addr::LOCALHOST));
    assert_eq!((read.service_port, read.web_service_port), (Some(0), None));
    assert_eq!(read.advertised_address.as_deref(), Some("gate.example"));
    assert_eq!(read.cluster_name, "east");
    assert_eq!(read.broker_connect_timeout, Duration::ZERO);
    assert_eq!(
        (read.broker_read_timeout, read.keep_alive_interval),
        (None, None)
    );
    assert_eq!(read.max_message_size, 1_048_576);
    assert_eq!(
        (read.max_connections, read.max_connections_per_ip),
        (None, Some(7))
    );
    assert_eq!(
        read.allowed_host_names,
        Some(vec!["*.example".to_owned(), "b1".to_owned()])
    );
    assert_eq!(
        read.allowed_ip_addresses,
        ["10.0.0.0/8", "::1"]
            .map(AddressRange::parse)
            .into_iter()
            .collect()
    );
    assert_eq!(read.allowed_target_ports, Some(vec![6650, 6652]));
    assert_eq!(
        (
            read.not_ready_period.as_secs(),
            read.drain_timeout.as_secs()
        ),
        (5, 20)
    );
    assert_eq!(read.http.status_file, Some(PathBuf::from("/tmp/status")));
    assert!(!read.http.metrics_enabled);
    assert_eq!(read.http.max_connections, None);
    assert_eq!(read.http.max_request_header_size, 8192);
    assert_eq!(read.http.idle_timeout, Duration::from_millis(1500));
}

#[test]
fn malformed_values_are_refused() {
    let cases = [
        "brokerServiceURL=b:1",
        "brokerServiceURL=http://b",
        "brokerServiceURL=",
        "brokerWebServiceURL=https://b",
        "brokerWebServiceURL=b:8080",
        "brokerWebServiceURL=http://",
        "brokerWebServiceURL=http://u@b:1",
        "bindAddress=broker.example",
        "bindAddress=1.2.3",
        "servicePort=",
        "servicePort=65536",
        "servicePort=-1",
        "servicePort=x",
        "webServicePort=6650",
        "advertisedAddress=a b",
        "clusterName=a\nb",
        "brokerProxyConnectTimeoutMs=-1",
        "brokerProxyConnectTimeoutMs=10s",
        "brokerProxyReadTimeoutMs=99999999999",
        "keepAliveIntervalSeconds=1.5",
        "maxMessageSize=0",
        "maxMessageSize=2147483647",
        "maxConcurrentInboundConnections=many",
        "maxConcurrentLookupRequests=0",
        "brokerProxyAllowedHostNames=a b",
        "brokerProxyAllowedIPAddresses=host",
        "brokerProxyAllowedTargetPorts=0",
        "brokerProxyAllowedTargetPorts=6650-6660",
        "enableProxyStatsEndpoints=yes",
        "gatewayNotReadySeconds=16",
        "gatewayDrainTimeoutSeconds=-3",
        "httpServerIdleTimeout=0",
        "authenticationEnabled=maybe",
        "gatewayMaxUnauthenticatedConnections=some",
    ];
    for case in cases {
        let sets = [BROKER, case];
        let errors = with_sets(&sets).expect_err(case);
        let key = case.split_once('=').expect("pair").0;
        assert_eq!(errors.problems.len(), 1, "{errors}");
        assert_eq!(errors.problems[0].key.as_deref(), Some(key), "{errors}");
        assert_eq!(errors.problems[0].origin, Origin::Set, "{errors}");
    }
}

#[test]
fn what_would_be_unsafe_to_ignore_is_refused() {
    let cases = [
        "haProxyProtocolEnabled=true",
        "webServiceHaProxyProtocolEnabled=true",
        "tlsEnabledWithKeyStore=true",
        "brokerClientTlsEnabledWithKeyStore=true",
    ];
    for case in cases {
        let errors = with_sets(&[BROKER, case]).expect_err(case);
        assert_eq!(errors.problems.len(), 1, "{errors}");
        assert!(
            errors.problems[0]
                .what
                .starts_with("not supported by this version"),
            "{errors}"
        );
    }
    for case in [
        "authenticationEnabled=false",
        "servicePortTls=",
        "tlsEnabledWithBroker=",
    ] {
        assert!(with_sets(&[BROKER, case]).is_ok(), "{case}");
    }
}

#[test]
fn brokers_are_named_or_found_in_a_metadata_store() {
    let errors = with_sets(&[]).expect_err("no broker");
    assert_eq!(found(&errors), ["settings brokerServiceURL: missing"]);
    let discovery = |sets: &[&str]| with_sets(sets).expect("valid").settings.discovery;
    assert_eq!(discovery(&[BROKER]).metadata_store, None);
    // The brokers are named: nobody needs to ask for them.
    let sets = [BROKER, "metadataStoreUrl=etcd:unused"];
    assert_eq!(discovery(&sets).metadata_store, None);
    let warnings = with_sets(&sets).expect("valid").warnings;
    assert!(short(&warnings[0]).contains("not asked"), "{warnings:?}");
}

#[cfg(feature = "zookeeper")]
#[test]
fn brokers_are_discovered_in_zookeeper_only() {
    let discovery = |sets: &[&str]| with_sets(sets).expect("valid").settings.discovery;
    let store = |sets: &[&str]| {
        discovery(sets)
            .metadata_store
            .map(|store| store.to_string())
    };
    for key in ["metadataStoreUrl", "zookeeperServers"] {
        let settings = with_sets(&[&format!("{key}=zk:one:2181/pulsar")])
            .expect("valid")
            .settings;
        assert!(settings.broker.addresses.is_empty());
        let store = settings.discovery.metadata_store.map(|url| url.to_string());
        assert_eq!(store.as_deref(), Some("zk:one:2181/pulsar"), "{key}");
    }
    let errors = with_sets(&["metadataStoreUrl=etcd:http://one:2379"]).expect_err("no ZooKeeper");
    assert!(found(&errors)[0].contains("not in etcd:"), "{errors}");
    // The live list is wanted although the brokers are named.
    let active = [
        BROKER,
        "metadataStoreUrl=one:2181",
        "checkActiveBrokers=true",
    ];
    assert_eq!(store(&active).as_deref(), Some("zk:one:2181"));
    let timeout = |set: &str| discovery(&[BROKER, set]).session_timeout.as_millis();
    assert_eq!(timeout("zookeeperSessionTimeoutMs=-1"), 30_000);
    assert_eq!(timeout("zookeeperSessionTimeoutMs=5000"), 5000);
    assert_eq!(timeout("metadataStoreSessionTimeoutMillis=6000"), 6000);
}

#[cfg(not(feature = "zookeeper"))]
#[test]
fn a_build_without_zookeeper_says_so() {
    let errors = with_sets(&["metadataStoreUrl=zk:one:2181"]).expect_err("no ZooKeeper");
    assert!(
        found(&errors)[0].contains("built without the feature zookeeper"),
        "{errors}"
    );
}

#[test]
fn active_brokers_need_a_metadata_store() {
    let errors = with_sets(&[BROKER, "checkActiveBrokers=true"]).expect_err("who is active?");
    assert!(
        found(&errors)[0].contains("checkActiveBrokers: only a metadata store knows"),
        "{errors}"
    );
}

#[test]
fn lookups_have_settings_of_their_own() {
    let discovery = |sets: &[&str]| with_sets(sets).expect("valid").settings.discovery;
    assert!(!discovery(&[BROKER]).lookup_only);
    assert!(discovery(&[BROKER, "lookupOnly=true"]).lookup_only);
    let listener = discovery(&[BROKER, "brokerListenerName=external"]).broker_listener_name;
    assert_eq!(listener.as_deref(), Some("external"));
    let errors = with_sets(&[BROKER, "brokerListenerName=external:pulsar"]).expect_err("no name");
    assert!(found(&errors)[0].contains("brokerListenerName"), "{errors}");
}

#[test]
fn later_sources_win() {
    let directory = Directory::new();
    let env = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let mut sources = Sources {
        file: Some(directory.file(
            "a.yaml",
            "brokerServiceURL: pulsar://b:1\nservicePort: 1001\n",
        )),
        ..Sources::default()
    };
    let port = |sources: &Sources| load_gateway(sources).expect("valid").settings.service_port;
    assert_eq!(port(&sources), Some(1001));
    sources
        .environment
        .push(env("PULSEGATE_servicePort", "1003"));
    sources
        .environment
        .push(env("PULSAR_PREFIX_servicePort", "1002"));
    assert_eq!(port(&sources), Some(1003));
    sources.environment.remove(0);
    assert_eq!(port(&sources), Some(1002));
    sources.sets.push("servicePort=1004".to_owned());
    sources.sets.push("servicePort=1005".to_owned());
    assert_eq!(port(&sources), Some(1005));
    sources.flags.push(FlagValue {
        flag: "--port",
        key: "servicePort",
        value: "1006".to_owned(),
    });
    assert_eq!(port(&sources), Some(1006));
}

#[test]
fn real_names_win_over_deprecated_ones_in_any_order() {
    let loaded = with_file(
        "a.conf",
        "zookeeperServers=zk:old\nbrokerServiceURL=pulsar://b:1\n",
    )
    .expect("valid");
    let warnings: Vec<String> = loaded.warnings.iter().map(short).collect();
    assert_eq!(
        warnings[0],
        "1 zookeeperServers: deprecated name of metadataStoreUrl"
    );
    let loaded =
        with_sets(&[BROKER, "metadataStoreUrl=zk:new", "zookeeperServers=zk:old"]).expect("valid");
    assert!(short(&loaded.warnings[0]).ends_with("which has a value of its own and wins"));
}

#[test]
fn unknown_settings_are_errors_in_yaml_and_warnings_in_apache_files() {
    let errors = with_file(
        "a.yaml",
        "brokerServiceURL: pulsar://b:1\n\nservicePrt: 1\n",
    )
    .expect_err("unknown");
    assert_eq!(
        found(&errors),
        ["3 servicePrt: unknown setting (did you mean servicePort?)"]
    );
    let loaded = with_file(
        "a.conf",
        "brokerServiceURL=pulsar://b:1\nservicePrt=1\npluginKey=secret\n",
    )
    .expect("valid");
    let warnings: Vec<String> = loaded.warnings.iter().map(short).collect();
    assert_eq!(
        warnings,
        [
            "2 servicePrt: unknown setting (did you mean servicePort?)",
            "3 pluginKey: unknown setting"
        ]
    );
    assert_eq!(loaded.settings.service_port, Some(6650));
}

#[test]
fn unknown_variables_are_errors_under_our_prefix_only() {
    let env = |name: &str| Sources {
        sets: vec![BROKER.to_owned()],
        environment: vec![(name.to_owned(), "1".to_owned())],
        ..Sources::default()
    };
    let errors = load_gateway(&env("PULSEGATE_servicePorts")).expect_err("unknown");
    assert!(
        errors
            .to_string()
            .contains("environment PULSEGATE_servicePorts: servicePorts: unknown setting"),
        "{errors}"
    );
    assert_eq!(
        load_gateway(&env("PULSAR_PREFIX_servicePorts"))
            .expect("valid")
            .warnings
            .len(),
        1
    );
    for name in [
        "PULSEGATE_LOG",
        "PULSEGATE_PORT",
        "PULSEGATE_SERVICE_HOST",
        "PULSEGATE_",
        "servicePort",
        "PATH",
    ] {
        assert_eq!(
            load_gateway(&env(name)).expect(name).warnings,
            Vec::new(),
            "{name}"
        );
    }
}

#[test]
fn settings_without_effect_are_reported_once_and_without_values() {
    let text = "brokerServiceURL=pulsar://b:1\nnumIOThreads=\nhttpNumThreads=8\nsaslJaasServerRoleTokenSignerSecretPath=hush\n\
                proxyZeroCopyModeEnabled=true\nbrokerClient_listenerName=hush\nhttpReverseProxy.x.path=/x\n\
                httpReverseProxy.x.proxyTo=http://x\n";
    let loaded = with_file("proxy.conf", text).expect("valid");
    let warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "settings: accepted, but without effect in this version: httpNumThreads, saslJaasServerRoleTokenSignerSecretPath, \
          brokerClient_listenerName"
        ]
    );
}

#[test]
fn the_wildcard_of_the_shipped_apache_file_does_not_open_every_host() {
    let text = "brokerServiceURL=pulsar://b:1\nbrokerProxyAllowedHostNames=*\n";
    let loaded = with_file("proxy.conf", text).expect("valid");
    assert_eq!(loaded.settings.allowed_host_names, None);
    assert_eq!(loaded.warnings.len(), 1);
    let every = Some(vec!["*".to_owned()]);
    assert_eq!(
        settings(&["brokerProxyAllowedHostNames=*"]).allowed_host_names,
        every
    );
    let yaml = "brokerServiceURL: pulsar://b:1\nbrokerProxyAllowedHostNames: '*'\n";
    assert_eq!(
        with_file("a.yaml", yaml)
            .expect("valid")
            .settings
            .allowed_host_names,
        every
    );
}

#[test]
fn an_apache_file_with_every_setting_at_its_default_loads_in_silence() {
    let mut text = String::new();
    for spec in GATEWAY_KEYS
        .iter()
        .filter(|spec| !spec.name.ends_with('*') && spec.name != "brokerServiceURL")
    {
        text.push_str(&format!(
            "# {}\n{} = {}\n",
            spec.meaning, spec.name, spec.defaults[0]
        ));
    }
    text.push_str(BROKER);
    let loaded = with_file("proxy.conf", text).expect("valid");
    assert_eq!(loaded.warnings, Vec::new());
    assert_eq!(loaded.settings, settings(&[]));
}

#[test]
fn a_star_for_addresses_or_ports_is_no_rule() {
    for set in [
        "brokerProxyAllowedIPAddresses=*",
        "brokerProxyAllowedTargetPorts=6650,*",
    ] {
        let read = settings(&[set]);
        assert_eq!(
            (read.allowed_ip_addresses, read.allowed_target_ports),
            (None, None),
            "{set}"
        );
    }
    let shipped = with_file(
        "proxy.conf",
        format!("{BROKER}\nbrokerProxyAllowedTargetPorts=6650,6651\n"),
    );
    assert_eq!(shipped.expect("valid").settings.allowed_target_ports, None);
    let chosen = settings(&["brokerProxyAllowedTargetPorts=6650,6651"]).allowed_target_ports;
    assert_eq!(chosen, Some(vec![6650, 6651]));
}

#[test]
fn host_patterns_alone_open_the_default_ports_of_apache_only() {
    let hosts = "brokerProxyAllowedHostNames=*.svc";
    assert_eq!(
        settings(&[hosts]).allowed_target_ports,
        Some(vec![6650, 6651])
    );
    let any_port = [hosts, "brokerProxyAllowedTargetPorts=*"];
    assert_eq!(settings(&any_port).allowed_target_ports, None);
}

#[test]
fn repeated_settings_are_errors_unless_an_apache_file_repeats_the_value() {
    let errors = with_file(
        "a.yaml",
        "brokerServiceURL: pulsar://b:1\nservicePort: 1\nservicePort: 1\n",
    );
    assert_eq!(
        found(&errors.expect_err("repeated")),
        ["3 servicePort: the setting is given twice (first on line 2)"]
    );
    let errors = with_file(
        "a.conf",
        "brokerServiceURL=pulsar://b:1\nservicePort=1\nservicePort=2\n",
    );
    assert_eq!(
        found(&errors.expect_err("repeated")),
        ["3 servicePort: the setting is given twice (first on line 2)"]
    );
    let loaded = with_file(
        "a.conf",
        "brokerServiceURL=pulsar://b:1\nservicePort=1\nservicePort=1\n",
    )
    .expect("valid");
    assert_eq!(loaded.warnings.len(), 1);
}

#[test]
fn all_problems_of_all_sources_are_listed_together() {
    let directory = Directory::new();
    let text =
        "# file\nservicePort: 70000\nmaxMessageSize: big\nbogus: 1\nhaProxyProtocolEnabled: true\n";
    let sources = Sources {
        file: Some(directory.file("a.yaml", text)),
        environment: vec![("PULSEGATE_clusterNam".to_owned(), "x".to_owned())],
        sets: vec!["novalue".to_owned(), "webServicePort=x".to_owned()],
        flags: vec![FlagValue {
            flag: "--bind",
            key: "bindAddress",
            value: "nowhere!".to_owned(),
        }],
    };
    let errors = load_gateway(&sources).expect_err("many");
    let mut list = found(&errors);
    list.sort();
    assert_eq!(
        list,
        [
            "--bind bindAddress: \"nowhere!\" is not accepted",
            "--set -: the argument has no setting before a =",
            "--set webServicePort: \"x\" is not accepted",
            "2 servicePort: \"70000\" is not accepted",
            "3 maxMessageSize: \"big\" is not accepted",
            "4 bogus: unknown setting",
            "5 haProxyProtocolEnabled: not supported by this version: PROXY protocol on the binary port",
            "environment PULSEGATE_clusterNam clusterNam: unknown setting (did you mean clusterName?)",
            "settings brokerServiceURL: missing",
        ]
    );
    let printed = errors.to_string();
    assert!(
        printed.contains("a.yaml:2: servicePort: \"70000\" is not accepted; expected a port"),
        "{printed}"
    );
}

#[test]
fn files_that_cannot_be_read_are_one_problem() {
    let large = vec![b'#'; usize::try_from(MAX_FILE_SIZE).expect("small") + 1];
    let cases: [(&str, &[u8], &str); 4] = [
        (
            "a.conf",
            b"servicePort=1\n\xff\xfe=2\n",
            "2 -: the file is not UTF-8 text",
        ),
        ("a.yaml", b"a: [\n", "-: malformed YAML"),
        ("a.yaml", b"just text", "-: malformed YAML"),
        ("a.conf", &large, "file -: is larger than 1048576 bytes"),
    ];
    for (name, text, expected) in cases {
        let errors = with_file(name, text).expect_err(expected);
        assert!(found(&errors)[0].contains(expected), "{errors}");
    }
    let directory = Directory::new();
    for path in [
        directory.0.path().to_owned(),
        directory.0.path().join("none"),
    ] {
        let errors = load_gateway(&Sources {
            file: Some(path),
            ..Sources::default()
        })
        .expect_err("unreadable");
        assert!(found(&errors)[0].contains("cannot be read"), "{errors}");
    }
}

#[test]
fn a_byte_order_mark_is_skipped() {
    let loaded = with_file("a", "\u{feff}brokerServiceURL=pulsar://b:1\n").expect("valid");
    assert_eq!(
        loaded.settings.bind_address,
        IpAddr::V4(Ipv4Addr::UNSPECIFIED)
    );
}

#[test]
fn credentials_never_reach_a_message() {
    let errors = with_sets(&[
        "tokenSecretKey=hush",
        "unknownThing=hush",
        "brokerServiceURL=",
    ])
    .expect_err("bad");
    assert!(!errors.to_string().contains("hush"), "{errors}");
}

proptest! {
    #[test]
    fn any_file_gives_settings_or_problems(text in "[a-zA-Z=: \n\\\\#,0-9-]{0,200}", extension in "conf|yaml|x") {
        match with_file(&format!("a.{extension}"), text) {
            Ok(loaded) => prop_assert!(loaded.settings.service_port.is_some()),
            Err(errors) => prop_assert!(!errors.problems.is_empty() && !errors.to_string().is_empty()),
        }
    }
}

#[test]
fn settings_that_nobody_gave_are_those_of_the_default() {
    let read = with_file("proxy.conf", BROKER).expect("valid").settings;
    assert_eq!(read, GatewaySettings::for_broker(read.broker.clone()));
}

#[test]
fn a_certificate_as_credential_needs_tls_towards_brokers_and_takes_its_own_files() {
    let plugin =
        "brokerClientAuthenticationPlugin=org.apache.pulsar.client.impl.auth.AuthenticationTls";
    let files = "brokerClientAuthenticationParameters=tlsCertFile:/c.pem,tlsKeyFile:/k.pem";
    let load = |sets: &[&str]| {
        load_gateway(&Sources {
            sets: sets.iter().map(|set| (*set).to_owned()).collect(),
            ..Sources::default()
        })
    };
    let problems = |sets: &[&str]| load(sets).unwrap_err().to_string();
    let plain = problems(&["brokerServiceURL=pulsar://b:6650", plugin, files]);
    assert!(plain.contains("tlsEnabledWithBroker=true"), "{plain}");
    let secure = "brokerServiceURL=pulsar+ssl://b:6651";
    let without = problems(&[secure, plugin]);
    assert!(without.contains("tlsCertFile"), "{without}");
    let identity = load(&[secure, plugin, files])
        .unwrap()
        .settings
        .tls
        .brokers
        .identity;
    assert_eq!(identity.unwrap().certificate, Path::new("/c.pem"));
}
