//! The command line through the built binary.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use pulsegate::testing::certificates::Authority;

fn pulsegate() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pulsegate"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("PULSAR_PREFIX_") || name.starts_with("PULSEGATE_") {
            command.env_remove(name);
        }
    }
    command
}

fn run(arguments: &[&str]) -> Output {
    pulsegate().args(arguments).output().expect("run")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A running gateway; killed when dropped.
struct Running {
    child: Child,
    broker: String,
    http: String,
}

impl Running {
    fn start(arguments: &[&str]) -> Self {
        Self::start_with_log(arguments, Stdio::null())
    }

    fn start_with_log(arguments: &[&str], log: Stdio) -> Self {
        let mut child = pulsegate()
            .args([
                "gateway",
                "--broker",
                "pulsar://127.0.0.1:1",
                "--bind",
                "127.0.0.1",
            ])
            .args(["--port", "0", "--http-port", "0"])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("start");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped"))
            .read_line(&mut line)
            .expect("a line");
        let rest = line
            .strip_prefix("ready broker=pulsar://")
            .expect("the ready line");
        let (broker, http) = rest
            .trim_end()
            .split_once(" http=http://")
            .expect("both addresses");
        Self {
            broker: broker.to_owned(),
            http: http.to_owned(),
            child,
        }
    }

    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.http).expect("connect");
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        )
        .expect("write");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("read");
        answer
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .args([name, &self.child.id().to_string()])
            .status()
            .expect("kill");
        assert!(sent.success());
    }

    fn exit_code(mut self) -> Option<i32> {
        self.child.wait().expect("wait").code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended already in most tests.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn malformed_settings_are_all_listed_with_file_key_and_line() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("gateway.yaml");
    let text = "# the gateway\nbrokerServiceURL: broker:6650\nservicePrt: 6650\nmaxMessageSize: big\n\
                authenticationEnabled: true\n";
    std::fs::write(&path, text).expect("write");
    let path = path.to_str().expect("UTF-8");
    let output = run(&["gateway", "--config", path, "--port", "x", "--set", "oops"]);
    assert_eq!(output.status.code(), Some(64));
    assert!(output.stdout.is_empty());
    let printed = stderr(&output);
    for expected in [
        "the settings have 6 problems:".to_owned(),
        format!("{path}:2: brokerServiceURL: \"broker:6650\" has an unknown scheme"),
        format!("{path}:3: servicePrt: unknown setting (did you mean servicePort?)"),
        format!("{path}:4: maxMessageSize: \"big\" is not accepted; expected a number from 1 to"),
        "settings: authenticationProviders: nobody could connect without any".to_owned(),
        "--port: servicePort: \"x\" is not accepted".to_owned(),
        "--set: the argument has no setting before a =; expected KEY=VALUE".to_owned(),
    ] {
        assert!(
            printed.contains(&expected),
            "{expected}\nis not in\n{printed}"
        );
    }
}

#[test]
fn wrong_arguments_exit_64_and_help_exits_0() {
    for arguments in [
        &["gateway", "--no-such-flag"][..],
        &["gateway", "--port"],
        &["gateway", "--broker", "pulsar://b:1", "--log-level", "loud"],
        &["gateway", "--broker", "pulsar://b:1", "--log-format", "xml"],
        &["gateway", "extra"],
        &["no-such-command"],
        &[],
    ] {
        let output = run(arguments);
        assert_eq!(
            output.status.code(),
            Some(64),
            "{arguments:?}: {}",
            stderr(&output)
        );
        assert!(
            output.stdout.is_empty() && !output.stderr.is_empty(),
            "{arguments:?}"
        );
    }
    let version = run(&["--version"]);
    assert_eq!(version.status.code(), Some(0));
    assert_eq!(
        String::from_utf8_lossy(&version.stdout),
        format!("pulsegate {}\n", env!("CARGO_PKG_VERSION"))
    );
    let help = run(&["gateway", "--help"]);
    assert_eq!(help.status.code(), Some(0));
    let text = String::from_utf8_lossy(&help.stdout);
    for flag in [
        "--config",
        "--set",
        "--broker",
        "--web",
        "--port",
        "--http-port",
        "--bind",
        "--log-level",
        "--log-format",
        "--check-config",
        "Examples:",
    ] {
        assert!(text.contains(flag), "{flag}");
    }
}

#[test]
fn check_config_reports_and_serves_nothing() {
    let output = run(&[
        "gateway",
        "--check-config",
        "--broker",
        "pulsar://b:1",
        "--set",
        "numIOThreads=4",
    ]);
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stdout.is_empty());
    assert!(
        stderr(&output).contains("without effect in this version: numIOThreads"),
        "{}",
        stderr(&output)
    );
    assert!(stderr(&output).contains("the settings are valid"));
}

#[test]
fn check_config_looks_into_keys_and_password_files() {
    let sets = [
        "brokerServiceURL=pulsar://b:1",
        "authenticationEnabled=true",
        "authenticationProviders=token,basic",
        "tokenPublicKey=data:,no key",
        "basicAuthConf=data:,me:plain",
    ];
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    let arguments: Vec<&str> = ["gateway", "--check-config"]
        .into_iter()
        .chain(sets)
        .collect();
    let output = run(&arguments);
    assert_eq!(output.status.code(), Some(64));
    for part in ["tokenPublicKey: no RSA public key", "basicAuthConf: line 1"] {
        assert!(stderr(&output).contains(part), "{}", stderr(&output));
    }
}

#[test]
fn settings_come_from_the_environment() {
    let output = pulsegate()
        .args(["gateway", "--check-config"])
        .env("PULSAR_PREFIX_brokerServiceURL", "pulsar://b:1")
        .env("PULSEGATE_servicePort", "70000")
        .output()
        .expect("run");
    assert_eq!(output.status.code(), Some(64));
    assert!(
        stderr(&output).contains("environment PULSEGATE_servicePort: servicePort: \"70000\""),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_port_in_use_fails_with_its_name() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let port = taken.local_addr().expect("address").port().to_string();
    let output = run(&[
        "gateway",
        "--broker",
        "pulsar://b:1",
        "--bind",
        "127.0.0.1",
        "--port",
        "0",
        "--http-port",
        &port,
    ]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains(&format!("bind the HTTP port 127.0.0.1:{port}")),
        "{}",
        stderr(&output)
    );
}

#[test]
fn serves_metrics_and_health_then_drains_on_a_signal() {
    for signal in ["-TERM", "-INT"] {
        let gateway = Running::start(&["--set", "clusterName=east"]);
        assert!(TcpStream::connect(&gateway.broker).is_ok());
        assert!(gateway.get("/livez").starts_with("HTTP/1.1 200 "));
        assert!(gateway.get("/status.html").starts_with("HTTP/1.1 404 "));
        for path in ["/metrics", "/metrics/"] {
            let metrics = gateway.get(path);
            assert!(metrics.starts_with("HTTP/1.1 200 "), "{metrics}");
            assert!(
                metrics.contains("content-type: text/plain; version=0.0.4"),
                "{metrics}"
            );
            assert!(
                metrics.contains("process_start_time_seconds{cluster=\"east\"}"),
                "{metrics}"
            );
        }
        gateway.signal(signal);
        assert_eq!(gateway.exit_code(), Some(0));
    }
}

#[test]
fn is_not_ready_while_it_drains_and_a_second_signal_ends_at_once() {
    let times = [
        "--set",
        "gatewayNotReadySeconds=600",
        "--set",
        "gatewayDrainTimeoutSeconds=600",
    ];
    let gateway = Running::start(&times);
    gateway.signal("-TERM");
    let begin = Instant::now();
    loop {
        let answer = gateway.get("/readyz");
        if answer.contains("not ready: shutting down") {
            assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "{answer}");
    }
    assert!(gateway.get("/livez").starts_with("HTTP/1.1 200 "));
    gateway.signal("-TERM");
    assert_eq!(gateway.exit_code(), Some(130));
}

#[test]
fn a_log_that_nobody_reads_or_that_is_full_stops_nothing() {
    let loud = ["--log-level", "trace"];
    let full = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .expect("open");
    for log in [Stdio::piped(), full.into()] {
        let gateway = Running::start_with_log(&loud, log);
        // Far more lines than the pipe and the queue hold; nobody reads them, and standard output is closed as well.
        for _ in 0..8000 {
            drop(TcpStream::connect(&gateway.broker).expect("connect"));
        }
        assert!(gateway.get("/livez").starts_with("HTTP/1.1 200"));
        gateway.signal("-TERM");
        assert_eq!(gateway.exit_code(), Some(0));
    }
}

#[test]
fn tls_ports_are_in_the_ready_line_and_their_files_are_read_before_anything_listens() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let signed = Authority::new("ours").sign(&["localhost"]);
    let [certificate, key] = ["cert.pem", "key.pem"].map(|name| directory.path().join(name));
    std::fs::write(&certificate, &signed.certificate).expect("write");
    std::fs::write(&key, &signed.key).expect("write");
    let start = || {
        pulsegate()
            .args(["gateway", "--broker", "pulsar://127.0.0.1:1", "--bind"])
            .args(["127.0.0.1", "--port", "", "--http-port", ""])
            .args(["--set", "servicePortTls=0", "--set", "webServicePortTls=0"])
            .args([
                "--set",
                &format!("tlsCertificateFilePath={}", certificate.display()),
            ])
            .args(["--set", &format!("tlsKeyFilePath={}", key.display())])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start")
    };
    let mut child = start();
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped"))
        .read_line(&mut line)
        .expect("a line");
    let _ = child.kill();
    let _ = child.wait();
    let rest = line.strip_prefix("ready broker-tls=pulsar+ssl://127.0.0.1:");
    assert!(
        rest.is_some_and(|rest| rest.contains(" https=https://127.0.0.1:")),
        "{line}"
    );

    // Another certificate's key.
    let other = Authority::new("ours").sign(&["localhost"]);
    std::fs::write(&key, &other.key).expect("write");
    let output = start().wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let printed = stderr(&output);
    let files = format!("{} and {}", certificate.display(), key.display());
    assert!(printed.contains(&files), "{printed}");
}

/// A null broker of the binary; killed when dropped.
struct NullBroker {
    child: Child,
    url: String,
}

impl NullBroker {
    fn start() -> Self {
        let mut child = pulsegate()
            .args(["perf", "null-broker", "--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped"))
            .read_line(&mut line)
            .expect("a line");
        let url = line.strip_prefix("ready broker=").expect("the ready line");
        Self {
            url: url.trim_end().to_owned(),
            child,
        }
    }

    /// Ends it with a signal; returns its exit code.
    fn end(mut self, signal: &str) -> Option<i32> {
        let sent = Command::new("kill")
            .args([signal, &self.child.id().to_string()])
            .status()
            .expect("kill");
        assert!(sent.success());
        self.child.wait().expect("wait").code()
    }
}

impl Drop for NullBroker {
    fn drop(&mut self) {
        // It has ended already in most tests.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_null_broker_listens_and_ends_with_0_at_both_signals() {
    for signal in ["-TERM", "-INT"] {
        let broker = NullBroker::start();
        let address = broker.url.strip_prefix("pulsar://").expect("a URL");
        TcpStream::connect(address).expect("it listens");
        assert_eq!(broker.end(signal), Some(0));
    }
}

#[test]
fn every_wrong_flag_of_perf_is_told_at_once() {
    let output = run(&[
        "perf",
        "null-broker",
        "--size",
        "big",
        "--advertised",
        "http://x",
        "--nope",
        "-txn",
        "--threads=0",
    ]);
    assert_eq!(output.status.code(), Some(64));
    assert!(output.stdout.is_empty());
    let printed = stderr(&output);
    for expected in [
        "the arguments have 5 problems:",
        "--nope: unknown flag",
        "-txn: a flag of pulsar-perf that is not supported here",
        "--advertised: ",
        "--size: \"big\" is not accepted; expected a whole number from 0 to 5242880",
        "--threads: \"0\" is not accepted; expected a whole number from 1 to 1000",
    ] {
        assert!(printed.contains(expected), "{expected} in {printed}");
    }
}

#[test]
fn a_null_broker_whose_address_is_taken_cannot_run() {
    let broker = NullBroker::start();
    let address = broker.url.strip_prefix("pulsar://").expect("a URL");
    let output = run(&["perf", "null-broker", "--listen", address]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("cannot listen on"));
}

/// The JSON document of a load that ended well.
fn report(arguments: &[&str]) -> serde_json::Value {
    let output = run(arguments);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).expect("one JSON document")
}

#[test]
fn loads_end_after_their_messages_with_one_document() {
    let broker = NullBroker::start();
    let pid = broker.child.id().to_string();
    let url = broker.url.as_str();
    let produced = report(&[
        "perf",
        "produce",
        "-u",
        url,
        "-r",
        "0",
        "-m",
        "2000",
        "-s",
        "100",
        "-n",
        "2",
        "-t",
        "2",
        "--json",
        "--watch-pid",
        &pid,
        "t",
    ]);
    assert_eq!(produced["kind"], "produce");
    assert_eq!(produced["messages"], 2000);
    assert_eq!(produced["bytes"], 200_000);
    assert_eq!(produced["latency_from"], "send-call");
    assert_eq!(produced["watched"][0]["pid"], broker.child.id());
    let paced = report(&[
        "perf", "produce", "-u", url, "-r", "2000", "-m", "200", "-db", "-threads", "2", "--json",
        "t",
    ]);
    assert_eq!(paced["messages"], 200);
    assert_eq!(paced["latency_from"], "intended-send");
    // 200 messages at 2,000 a second; the first is due at once.
    let seconds = paced["seconds"].as_f64().expect("a number");
    assert!(seconds >= 0.099, "{seconds}");
    let consume = [
        "perf", "consume", "-u", url, "-m", "500", "-st", "Shared", "-n", "2", "--json", "t",
    ];
    let read = ["perf", "read", "-u", url, "-n", "500", "--json", "t"];
    for (arguments, kind) in [(&consume[..], "consume"), (&read, "read")] {
        let received = report(arguments);
        assert_eq!(received["kind"], kind);
        assert_eq!(received["messages"], 500);
        assert_eq!(received["latency_from"], "publish-time");
    }
}

#[test]
fn a_comparison_prints_the_ratios_of_its_rounds() {
    let brokers = [NullBroker::start(), NullBroker::start()];
    let targets = brokers.each_ref().map(|broker| broker.url.clone());
    let compared = report(&[
        "perf",
        "compare",
        "--target",
        &format!("a={}", targets[0]),
        "--target",
        &format!("b={}", targets[1]),
        "--pid",
        &format!("a={}", brokers[0].child.id()),
        "--rounds",
        "3",
        "--json",
        "--",
        "produce",
        "-r",
        "0",
        "-m",
        "1000",
        "-db",
        "t",
    ]);
    assert_eq!(compared["targets"][1]["name"], "b");
    assert_eq!(
        compared["targets"][1]["runs"].as_array().map(Vec::len),
        Some(3)
    );
    assert_eq!(
        compared["targets"][0]["runs"][0]["watched"]
            .as_array()
            .map(Vec::len),
        Some(1)
    );
    let rate = &compared["ratios"][0];
    assert_eq!(
        (&rate["target"], &rate["metric"]),
        (&"b".into(), &"messages_per_second".into())
    );
    assert_eq!(rate["rounds"], 3);
}

#[test]
fn wrong_flags_of_a_load_are_all_told_also_behind_a_comparison() {
    let load = [
        "produce", "-r", "fast", "-z", "BROTLI", "-time", "1", "-bw", "-u", "http://x",
    ];
    let direct = [&["perf"], &load[..]].concat();
    let target = [
        "perf",
        "compare",
        "--target",
        "a=pulsar://a:1",
        "--target",
        "b=nowhere",
        "--",
    ];
    let compared = [&target[..], &load].concat();
    for arguments in [direct, compared] {
        let output = run(&arguments);
        let printed = stderr(&output);
        assert_eq!(output.status.code(), Some(64), "{printed}");
        for expected in [
            "--rate: \"fast\" is not accepted; expected a number from 0 to 1000000000",
            "--compression: \"BROTLI\" is not accepted; expected NONE, LZ4",
            "--test-duration: nothing is left after the warm-up",
            "-bw: a flag of pulsar-perf that is not supported here",
            "http://x",
        ] {
            assert!(printed.contains(expected), "{expected} in {printed}");
        }
        assert_eq!(
            printed.contains("--target"),
            arguments.contains(&"compare"),
            "{printed}"
        );
    }
}

#[test]
fn a_load_that_cannot_begin_fails() {
    let output = run(&[
        "perf",
        "produce",
        "-u",
        "pulsar://127.0.0.1:1",
        "--nope",
        "t",
    ]);
    assert_eq!(output.status.code(), Some(64));
    let broker = NullBroker::start();
    let output = run(&["perf", "produce", "-u", &broker.url, "-m", "1", "bad/name"]);
    assert_eq!(output.status.code(), Some(64));
    assert!(stderr(&output).contains("TOPIC: "), "{}", stderr(&output));
}
