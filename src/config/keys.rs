//! Every setting of the gateway: Apache Pulsar's `proxy.conf` and our own.

/// What this version does with a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyStatus {
    /// It has its effect.
    Used,
    /// It is accepted and reported, once, when its value is not the default; nothing follows from it.
    NoEffect,
    /// It is for other tools that read the same file: it is accepted without a word, whatever its value.
    ForOthers,
    /// `true` asks for something whose absence would be unsafe, and is refused.
    RefusedWhenOn,
    /// Any value asks for something whose absence would be unsafe, and is refused.
    RefusedWhenSet,
    /// A deprecated name of another setting, which wins when both have a value.
    AliasOf(&'static str),
}

/// One setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeySpec {
    /// Its name; one that ends in `*` stands for all names with that beginning.
    pub name: &'static str,
    /// Its default, then other values that Apache's releases ship for it; empty text means no value.
    pub defaults: &'static [&'static str],
    /// What this version does with it.
    pub status: KeyStatus,
    /// Whether its value is a credential, which is never printed.
    pub secret: bool,
    /// What it means, with its unit; empty for a deprecated name.
    pub meaning: &'static str,
}

impl KeySpec {
    /// The setting `name` among `keys`; a name matches one that ends in `*` by its beginning.
    pub(super) fn find(keys: &'static [Self], name: &str) -> Option<&'static Self> {
        keys.iter().find(|spec| match spec.name.strip_suffix('*') {
            Some(prefix) => name.len() > prefix.len() && name.starts_with(prefix),
            None => spec.name == name,
        })
    }

    /// The known name most like `name`, when one is so near that it was probably meant.
    pub(super) fn suggest(keys: &'static [Self], name: &str) -> Option<&'static str> {
        if name.len() > NAME_LEN_COMPARED {
            return None;
        }
        let wanted = name.to_ascii_lowercase();
        let allowed = (wanted.len() / 4).clamp(1, 4);
        keys.iter()
            .filter(|spec| !spec.name.ends_with('*'))
            .map(|spec| {
                (
                    distance(&wanted, &spec.name.to_ascii_lowercase()),
                    spec.name,
                )
            })
            .min()
            .filter(|(distance, _)| *distance <= allowed)
            .map(|(_, name)| name)
    }

    /// Whether `value` is what the setting has anyway.
    pub(super) fn is_default(&self, value: &str) -> bool {
        let value = value.trim();
        value.is_empty()
            || self
                .defaults
                .iter()
                .any(|default| default.eq_ignore_ascii_case(value))
    }
}

/// Insertions, deletions and replacements that make `a` of `b`.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (index, from) in a.chars().enumerate() {
        let mut next = Vec::with_capacity(row.len());
        let mut left = index + 1;
        next.push(left);
        for (to, pair) in b.iter().zip(row.windows(2)) {
            let (diagonal, above) = match pair {
                [diagonal, above] => (*diagonal, *above),
                _ => continue,
            };
            left = (diagonal + usize::from(from != *to))
                .min(above + 1)
                .min(left + 1);
            next.push(left);
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

/// Names longer than this are compared with none: no setting is near.
const NAME_LEN_COMPARED: usize = 100;

/// Makes a table of settings.
macro_rules! keys {
    ($($(@$secret:ident)? $name:literal $defaults:tt $status:ident $(($of:literal))?: $meaning:literal;)*) => {
        &[$(KeySpec {
            name: $name,
            defaults: &$defaults,
            status: KeyStatus::$status $(($of))?,
            secret: is_secret(&[$(stringify!($secret))?]),
            meaning: $meaning,
        }),*]
    };
}

pub(super) use keys;

pub(super) const fn is_secret(marks: &[&str]) -> bool {
    !marks.is_empty()
}

/// All settings of the gateway, in the order of `docs/configuration.md`. The Apache names and defaults are those of
/// `proxy.conf` of the releases 4.0 to 4.2.
pub const GATEWAY_KEYS: &[KeySpec] = keys! {
    // Brokers
    "brokerServiceURL" [""] Used: "service URL of the brokers, `pulsar://host:port[,host:port]`, with TLS `pulsar+ssl://`; required, or `brokerServiceURLTLS`, unless `metadataStoreUrl` is set";
    "brokerWebServiceURL" [""] Used: "base URLs of the brokers' HTTP service, `http://host:port`, comma separated: `/admin` and `/lookup` are passed on to them in turn; empty: these paths answer 503";
    "brokerServiceURLTLS" [""] Used: "service URL of the brokers over TLS, `pulsar+ssl://host:port[,host:port]`; in place of `brokerServiceURL` where `tlsEnabledWithBroker` is true";
    "brokerWebServiceURLTLS" [""] Used: "the same over TLS, `https://host:port`, in place of the above where `tlsEnabledWithBroker`";
    "functionWorkerWebServiceURL" [""] Used: "base URL of the function workers, `http://host:port`: paths of functions, sources, sinks and workers go there; empty: to the brokers";
    "functionWorkerWebServiceURLTLS" [""] Used: "the same over TLS, in place of the above where `tlsEnabledWithBroker`";
    "clusterName" [""] Used: "value of the `cluster` label of every metric; may stay empty";
    "metadataStoreUrl" [""] Used: "ZooKeeper with the live list of brokers, `zk:host:port[,host:port][/path]`; asked where `brokerServiceURL` is empty or `checkActiveBrokers` is true; other stores are refused";
    "configurationMetadataStoreUrl" [""] NoEffect: "configuration metadata store";
    "zookeeperServers" [""] AliasOf("metadataStoreUrl"): "";
    "configurationStoreServers" [""] AliasOf("configurationMetadataStoreUrl"): "";
    "globalZookeeperServers" [""] AliasOf("configurationMetadataStoreUrl"): "";
    "metadataStoreSessionTimeoutMillis" ["30000"] Used: "session timeout of the metadata store in milliseconds, at least 1000";
    "zookeeperSessionTimeoutMs" ["-1"] AliasOf("metadataStoreSessionTimeoutMillis"): "";
    "metadataStoreCacheExpirySeconds" ["300"] NoEffect: "cache expiry of the metadata store";
    "zooKeeperCacheExpirySeconds" ["-1"] AliasOf("metadataStoreCacheExpirySeconds"): "";
    "metadataStoreAllowReadOnlyOperations" ["false"] NoEffect: "read-only sessions of the metadata store";
    "zooKeeperAllowReadOnlyOperations" ["false"] AliasOf("metadataStoreAllowReadOnlyOperations"): "";
    "checkActiveBrokers" ["false"] Used: "connect clients to brokers of the live list only; needs `metadataStoreUrl`";
    "brokerListenerName" [""] Used: "advertised listener that lookups ask for where the client names none, and at which discovered brokers are asked; empty: none";
    "lookupOnly" ["false"] Used: "answer lookups with the brokers' own addresses and connect no client to a broker";
    // Connections to brokers
    "brokerProxyConnectTimeoutMs" ["10000"] Used: "bound on a TCP connect to a broker, in milliseconds, within the bound on the handshake; 0: only that one";
    "brokerProxyReadTimeoutMs" ["75000"] Used: "a relayed connection of which one side sends nothing for so many milliseconds is closed; 0 is off";
    "brokerProxyAllowedHostNames" [""] Used: "host patterns (`*` stands for any characters) that clients may be connected to; empty: the configured brokers and those that lookup answers named. Apache's default `*`, written in its key=value file, counts as empty; given elsewhere it opens every host";
    "brokerProxyAllowedIPAddresses" ["*"] Used: "addresses, networks (`10.0.0.0/8`), ranges (`10.0.0.1-9`) and patterns (`10.0.*.*`) that clients may be connected to; `*`: no check beyond the one of hosts";
    "brokerProxyAllowedTargetPorts" [""] Used: "ports that clients may be connected to; `*`: all; empty: all, but 6650 and 6651 where `brokerProxyAllowedHostNames` is set. Apache's default `6650,6651`, written in its key=value file, counts as empty";
    "proxyZeroCopyModeEnabled" ["true"] NoEffect: "relay with splice";
    "keepAliveIntervalSeconds" ["30"] Used: "interval of pings and bound on a handshake, in seconds; 0: no pings, and handshakes within 30";
    "haProxyProtocolEnabled" ["false"] RefusedWhenOn: "PROXY protocol on the binary port";
    "maxMessageSize" ["5242880"] Used: "largest message in bytes, where a broker names none of its own; a frame may be 10 KiB larger";
    "proxyLogLevel" ["0"] NoEffect: "logging of commands and messages";
    // Listeners
    "bindAddress" ["0.0.0.0"] Used: "IP address of all listeners";
    "advertisedAddress" [""] Used: "host name by which others reach this process; printed in the ready line when listening on every address";
    "servicePort" ["6650"] Used: "TCP port of the binary protocol; 0 picks a free one, empty turns it off where `servicePortTls` is on";
    "servicePortTls" [""] Used: "TCP port of the binary protocol over TLS; 0 picks a free one, empty turns it off";
    "webServicePort" ["8080"] Used: "TCP port of the HTTP endpoints; 0 picks a free one, empty turns them off";
    "webServicePortTls" [""] Used: "TCP port of the HTTP endpoints over TLS; 0 picks a free one, empty turns it off";
    "webServiceHaProxyProtocolEnabled" ["false"] RefusedWhenOn: "PROXY protocol on the HTTP port";
    "webServiceTrustXForwardedFor" ["false"] Used: "whether forwarding headers of HTTP clients (`X-Forwarded-For` and so on) are passed on, ours added; else they are dropped";
    "webServiceLogDetailedAddresses" [""] NoEffect: "addresses in the access log";
    "numIOThreads" [""] NoEffect: "event loop threads";
    "numAcceptorThreads" ["", "1"] NoEffect: "accepting threads";
    "narExtractionDirectory" [""] NoEffect: "directory for plugins";
    "statusFilePath" [""] Used: "`/status.html` answers 200 only while this file exists; empty answers 404";
    // Authentication and authorization
    "authenticationEnabled" ["false"] Used: "authenticate clients; brokers are then told the client's role as `original_principal`";
    "authenticationProviders" [""] Used: "methods that clients may use, comma separated: `AuthenticationProviderToken`, `AuthenticationProviderTls` and `AuthenticationProviderBasic` of `org.apache.pulsar.broker.authentication`, or `token`, `tls`, `basic`; others are refused";
    "authorizationEnabled" ["false"] Used: "needs `authenticationEnabled`; the brokers authorize, the gateway only keeps roles that are not in `superUserRoles` from what is about all clients";
    "authorizationProvider" ["org.apache.pulsar.broker.authorization.PulsarAuthorizationProvider"] NoEffect: "class that authorizes";
    "superUserRoles" [""] Used: "roles that may see what is about all clients, comma separated; `anonymousUserRole` must not be one";
    "trustedProxyRoles" [""] Used: "roles of other proxies, comma separated: these alone may send `proxy_version` and name the client they connect for (`original_principal`, `X-Original-Principal`); not a setting of Apache's";
    "forwardAuthorizationCredentials" ["false"] Used: "give brokers the client's credential beside its role, and renew it when it expires";
    "authenticationRefreshCheckSeconds" ["60"] Used: "seconds that a client has to renew a credential that expired, where it is asked to; otherwise its connection ends at expiry; 0: expiry is not looked at after CONNECT";
    "anonymousUserRole" [""] Used: "role of clients whose method none of the providers has; empty: they are refused";
    "authenticationRoleLoggingAnonymizer" ["NONE"] NoEffect: "how roles are written to logs";
    @secret "tokenSecretKey" [""] Used: "key of HS256, HS384 and HS512 tokens, at least 32 bytes: `data:;base64,..`, `file:///path`, a path or Base64; a file's bytes are the key";
    "tokenPublicKey" [""] Used: "key of RS, PS and ES tokens where there is no `tokenSecretKey`, in DER or PEM; given in the same ways";
    "tokenPublicAlg" ["", "RS256"] Used: "an algorithm of the kind that the public key is of, RS256 when empty; tokens may use any of the kind";
    "tokenAuthClaim" ["", "sub"] Used: "claim that names the role, a text or a list of which the first is taken; `sub` when empty";
    "tokenAudienceClaim" [""] Used: "claim that must be, or list, `tokenAudience`; empty: no check";
    "tokenAudience" [""] Used: "the audience that tokens must be for";
    "tokenSettingPrefix" [""] Used: "where it is set, the token settings have names that begin with it";
    "tokenAllowedClockSkewSeconds" ["0"] Used: "seconds that the clocks of who makes tokens and of the gateway may differ";
    @secret "basicAuthConf" [""] Used: "users and hashed passwords, lines of `htpasswd` (APR1, MD5, SHA-256 and SHA-512 of crypt, bcrypt): `data:`, `file:///path`, a path or Base64";
    "openIDAllowedTokenIssuers" [""] NoEffect: "issuers of tokens";
    "openIDAllowedAudiences" [""] NoEffect: "audiences of tokens";
    "openIDRoleClaim" ["sub"] NoEffect: "claim that names the role";
    "openIDAcceptedTimeLeewaySeconds" ["0"] NoEffect: "clock skew allowed for tokens";
    "openIDCacheSize" ["5"] NoEffect: "keys cached";
    "openIDCacheRefreshAfterWriteSeconds" ["64800"] NoEffect: "when cached keys are refreshed";
    "openIDCacheExpirationSeconds" ["86400"] NoEffect: "when cached keys expire";
    "openIDKeyIdCacheMissRefreshSeconds" ["300"] NoEffect: "when unknown keys are asked for again";
    "openIDHttpConnectionTimeoutMillis" ["10000"] NoEffect: "connect timeout to the issuer";
    "openIDHttpReadTimeoutMillis" ["10000"] NoEffect: "read timeout to the issuer";
    "openIDRequireIssuersUseHttps" ["true"] NoEffect: "only issuers over HTTPS";
    "openIDFallbackDiscoveryMode" ["DISABLED"] NoEffect: "discovery of keys through Kubernetes";
    "openIDTokenIssuerTrustCertsFilePath" [""] NoEffect: "certificates of the issuer";
    "saslJaasClientAllowedIds" [".*pulsar.*"] NoEffect: "Kerberos principals allowed";
    "saslJaasServerSectionName" ["PulsarProxy"] NoEffect: "section of the Kerberos configuration";
    "saslJaasServerRoleTokenSignerSecretPath" [""] NoEffect: "secret that signs role tokens";
    "kinitCommand" ["", "/usr/bin/kinit"] NoEffect: "Kerberos command";
    "athenzDomainNames" [""] NoEffect: "Athenz domains";
    // TLS towards clients
    "tlsEnabledInProxy" ["false"] NoEffect: "without effect in Apache too: the TLS ports decide";
    "tlsCertificateFilePath" [""] Used: "PEM file of the certificate of the TLS ports and those between it and its issuer";
    "tlsKeyFilePath" [""] Used: "PEM file of its private key: PKCS#8, PKCS#1 or SEC1, not encrypted";
    "tlsTrustCertsFilePath" [""] Used: "PEM file of the issuers whose client certificates are accepted; clients are asked for one where it is set. Also for brokers where `brokerClientTrustCertsFilePath` is empty";
    "tlsCertRefreshCheckDurationSec" ["300"] Used: "seconds from one look at the files of certificates and keys to the next; new connections use what is in them. 0: a look at each new connection";
    "tlsRequireTrustedClientCertOnConnect" ["false"] Used: "clients without a trusted certificate are refused in the TLS handshake";
    "tlsAllowInsecureConnection" ["false"] Used: "accept any certificate, of clients and of brokers, whoever signed it; refused beside AuthenticationProviderTls, which would let everybody be anybody";
    "tlsProtocols" [""] Used: "versions of TLS on `servicePortTls`: `TLSv1.2`, `TLSv1.3`; empty: both";
    "tlsCiphers" [""] Used: "cipher suites on `servicePortTls`, by the names of Java or OpenSSL; empty: all that are safe";
    "tlsProvider" [""] NoEffect: "Java security provider";
    "tlsEnabledWithKeyStore" ["false"] RefusedWhenOn: "Java key stores; give PEM files in `tlsCertificateFilePath`, `tlsKeyFilePath` and `tlsTrustCertsFilePath` (`openssl pkcs12` makes them)";
    "tlsKeyStoreType" ["JKS"] NoEffect: "type of the key store";
    "tlsKeyStore" [""] NoEffect: "key store";
    @secret "tlsKeyStorePassword" [""] NoEffect: "password of the key store";
    "tlsTrustStoreType" ["JKS"] NoEffect: "type of the trust store";
    "tlsTrustStore" [""] NoEffect: "trust store";
    @secret "tlsTrustStorePassword" [""] NoEffect: "password of the trust store";
    "webServiceTlsProvider" ["", "Conscrypt"] NoEffect: "Java security provider of the HTTPS port";
    "webServiceTlsProtocols" [""] Used: "versions of TLS on `webServicePortTls`; as `tlsProtocols`";
    "webServiceTlsCiphers" [""] Used: "cipher suites on `webServicePortTls`; as `tlsCiphers`";
    "jsseProvider" [""] NoEffect: "Java security provider";
    "tlsFactoryClassName" [""] NoEffect: "Java class that makes TLS contexts";
    "tlsFactoryConfig" [""] NoEffect: "configuration of that class";
    "sslFactoryPlugin" ["", "org.apache.pulsar.common.util.DefaultPulsarSslFactory"] NoEffect: "Java class that makes TLS contexts";
    "sslFactoryPluginParams" [""] NoEffect: "configuration of that class";
    // TLS and credentials towards brokers
    "tlsEnabledWithBroker" ["false"] Used: "reach brokers over TLS, at the addresses with TLS that they name";
    "brokerClientAuthenticationPlugin" [""] Used: "credential of the gateway towards brokers: `AuthenticationToken`, `AuthenticationTls` or `AuthenticationBasic` of `org.apache.pulsar.client.impl.auth`; empty: brokers get the client's own, unless `authenticationEnabled`";
    @secret "brokerClientAuthenticationParameters" [""] Used: "parameters of that credential; a token's file or variable is read anew for every connection";
    "brokerClientTrustCertsFilePath" [""] Used: "PEM file of the issuers of brokers' certificates; empty: those of `tlsTrustCertsFilePath`, else those that the operating system trusts";
    "brokerClientCertificateFilePath" [""] Used: "PEM file of the certificate for brokers that ask for one; with `brokerClientKeyFilePath`";
    "brokerClientKeyFilePath" [""] Used: "PEM file of its private key";
    "tlsHostnameVerificationEnabled" ["true", "false"] Used: "check that a broker's certificate is for its host; Apache's files up to 4.x say `false`";
    "brokerClientTlsEnabledWithKeyStore" ["false"] RefusedWhenOn: "Java key stores; give PEM files in `brokerClientTrustCertsFilePath`, `brokerClientCertificateFilePath` and `brokerClientKeyFilePath` (`openssl pkcs12` makes them)";
    "brokerClientTlsKeyStoreType" ["JKS"] NoEffect: "type of the key store";
    "brokerClientTlsKeyStore" [""] NoEffect: "key store";
    @secret "brokerClientTlsKeyStorePassword" [""] NoEffect: "password of the key store";
    "brokerClientTlsTrustStoreType" ["JKS"] NoEffect: "type of the trust store";
    "brokerClientTlsTrustStore" [""] NoEffect: "trust store";
    @secret "brokerClientTlsTrustStorePassword" [""] NoEffect: "password of the trust store";
    "brokerClientTlsCiphers" [""] Used: "cipher suites towards brokers; as `tlsCiphers`";
    "brokerClientTlsProtocols" [""] Used: "versions of TLS towards brokers; as `tlsProtocols`";
    "brokerClientSslProvider" [""] NoEffect: "Java security provider";
    "brokerClientJsseProvider" [""] NoEffect: "Java security provider";
    "brokerClientTlsFactoryClassName" [""] NoEffect: "Java class that makes TLS contexts";
    "brokerClientTlsFactoryConfig" [""] NoEffect: "configuration of that class";
    "brokerClientSslFactoryPlugin" ["", "org.apache.pulsar.common.util.DefaultPulsarSslFactory"] NoEffect: "Java class that makes TLS contexts";
    "brokerClientSslFactoryPluginParams" [""] NoEffect: "configuration of that class";
    @secret "brokerClient_*" [""] NoEffect: "settings of the Java client";
    // Limits
    "maxConcurrentInboundConnections" ["10000"] Used: "client connections at a time; 0 or less is no bound";
    "maxConcurrentInboundConnectionsPerIp" ["0"] Used: "client connections at a time from one address; 0 or less is no bound";
    "gatewayMaxUnauthenticatedConnections" ["5000"] Used: "of these, connections whose handshake is not over, whichever port they came to; 0 or less is no bound";
    "maxConcurrentLookupRequests" ["50000"] Used: "lookups in flight at a time; at least 1";
    "maxTopicListInFlightHeapMemSizeMB" ["100"] NoEffect: "memory of topic lists in flight";
    "maxTopicListInFlightDirectMemSizeMB" ["100"] Used: "megabytes of topic lists and schemas that wait for clients, all together; beyond them clients get TooManyRequests; 0 or less is no bound";
    "maxTopicListInFlightHeapMemSizePermitsAcquireTimeoutMillis" ["25000"] NoEffect: "wait for that memory";
    "maxTopicListInFlightDirectMemSizePermitsAcquireTimeoutMillis" ["25000"] NoEffect: "wait for that memory";
    "maxTopicListInFlightHeapMemSizePermitsAcquireQueueSize" ["10000"] NoEffect: "requests that wait for that memory";
    "maxTopicListInFlightDirectMemSizePermitsAcquireQueueSize" ["10000"] NoEffect: "requests that wait for that memory";
    "httpRequestsLimitEnabled" ["false"] Used: "whether the rate of HTTP requests is limited; one beyond is answered 429";
    "httpRequestsMaxPerSecond" ["100.0"] Used: "HTTP requests a second, where limited; as many may come at once after a pause of a second";
    "maxConcurrentHttpRequests" ["1024"] Used: "HTTP requests at a time, health endpoints not counted; one beyond is answered 503; 0 is no bound";
    "maxHttpServerConnections" ["2048"] Used: "HTTP connections at a time; 0 is no bound";
    "gatewayMaxTrackedTopics" ["10000"] Used: "topics with metric series of their own; later ones share one series";
    // HTTP
    "httpReverseProxyConfigs" [""] NoEffect: "further routes as Java objects; the next setting has them";
    "httpReverseProxy.*" [""] Used: "further routes: `httpReverseProxy.<name>.path` and `httpReverseProxy.<name>.proxyTo`, both needed";
    "httpOutputBufferSize" ["32768"] NoEffect: "response buffer";
    "httpMaxRequestHeaderSize" ["8192"] Used: "largest request head in bytes, else 431, or 414 where the URI alone is larger; values under 8192 count as 8192";
    "httpMaxResponseHeaderSize" ["8192"] Used: "largest head of a broker's answer in bytes, else 502; values under 8192 count as 8192";
    "httpInputMaxReplayBufferSize" ["5242880"] Used: "bytes of a request body that are kept for a redirect of the broker";
    "httpProxyTimeout" ["300000"] Used: "bound on a request that is passed on, both bodies included, in milliseconds; else 504";
    "httpProxyIdleTimeout" ["30000"] Used: "a body of which nothing moves between gateway and broker for so many milliseconds fails; the wait for an answer is bounded by `httpProxyTimeout` alone";
    "httpNumThreads" [""] NoEffect: "HTTP threads";
    "httpServerThreadPoolQueueSize" ["8192"] NoEffect: "queue of the HTTP threads";
    "httpServerAcceptQueueSize" ["8192"] NoEffect: "accept queue";
    "httpServerIdleTimeout" ["30000"] Used: "an HTTP connection on which nothing moves for so many milliseconds is closed, unless an answer is being made";
    "proxyHttpResponseHeadersJson" [""] Used: "headers of every response, a JSON object of names and values";
    "enableProxyStatsEndpoints" ["true"] Used: "whether `/metrics` and `/proxy-stats` are served";
    "authenticateMetricsEndpoint" ["true"] Used: "whether `/metrics` needs authentication when that is on";
    "metricsBufferResponse" ["false"] NoEffect: "cache of the metrics response";
    "metricsServletTimeoutMs" ["30000"] NoEffect: "bound on a metrics request";
    "additionalServletDirectory" [""] NoEffect: "directory of Java plugins";
    "additionalServlets" [""] NoEffect: "Java plugins";
    "proxyAdditionalServletDirectory" [""] AliasOf("additionalServletDirectory"): "";
    "proxyAdditionalServlets" [""] AliasOf("additionalServlets"): "";
    "proxyExtensions" [""] NoEffect: "Java plugins";
    "proxyExtensionsDirectory" ["", "./proxyextensions"] NoEffect: "directory of Java plugins";
    "useSeparateThreadPoolForProxyExtensions" ["true"] NoEffect: "threads of Java plugins";
    "webSocketServiceEnabled" ["false"] NoEffect: "WebSocket service";
    "webSocketPingDurationSeconds" ["-1"] NoEffect: "period of WebSocket pings";
    // Shutdown
    "gatewayNotReadySeconds" ["0"] Used: "at shutdown, seconds for which `/readyz` already answers 503 while connections are still accepted";
    "gatewayDrainTimeoutSeconds" ["15"] Used: "bound on the whole shutdown in seconds, the one above included";
};

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_unique_and_aliases_point_to_real_settings() {
        let mut names = HashSet::new();
        for spec in GATEWAY_KEYS {
            assert!(names.insert(spec.name), "{} is listed twice", spec.name);
            assert!(!spec.defaults.is_empty(), "{}", spec.name);
        }
        for spec in GATEWAY_KEYS {
            match spec.status {
                KeyStatus::AliasOf(target) => assert!(names.contains(target), "{}", spec.name),
                _ => assert!(!spec.meaning.is_empty(), "{}", spec.name),
            }
        }
    }

    #[test]
    fn finds_names_and_families_of_names() {
        assert_eq!(
            KeySpec::find(GATEWAY_KEYS, "servicePort").map(|spec| spec.name),
            Some("servicePort")
        );
        assert_eq!(
            KeySpec::find(GATEWAY_KEYS, "brokerClient_listenerName").map(|spec| spec.name),
            Some("brokerClient_*")
        );
        assert_eq!(KeySpec::find(GATEWAY_KEYS, "brokerClient_"), None);
        assert_eq!(KeySpec::find(GATEWAY_KEYS, "serviceport"), None);
        assert_eq!(KeySpec::find(GATEWAY_KEYS, "*"), None);
    }

    #[test]
    fn suggests_only_names_that_are_near() {
        let cases = [
            ("brokerServiceUrl", Some("brokerServiceURL")),
            ("brokerServiceURLs", Some("brokerServiceURL")),
            ("serviceport", Some("servicePort")),
            ("bindAdress", Some("bindAddress")),
            ("webServicePrt", Some("webServicePort")),
            ("x", None),
            ("", None),
            ("completelyDifferent", None),
        ];
        for (name, expected) in cases {
            assert_eq!(KeySpec::suggest(GATEWAY_KEYS, name), expected, "{name}");
        }
        assert_eq!(
            KeySpec::suggest(GATEWAY_KEYS, &"a".repeat(NAME_LEN_COMPARED + 1)),
            None
        );
    }

    #[test]
    fn distance_counts_edits() {
        for (a, b, expected) in [
            ("", "", 0),
            ("", "ab", 2),
            ("ab", "", 2),
            ("kitten", "sitting", 3),
            ("a", "a", 0),
        ] {
            assert_eq!(distance(a, b), expected, "{a} {b}");
        }
    }
}
