//! `pulsegate perf` through the built binary, against brokers that stop, refuse or never answer, and its wrong arguments.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

use pulsegate::protocol::command::Command as Wire;
use pulsegate::protocol::proto::pulsar::{
    CommandProducerSuccess, CommandSendError, CommandSendReceipt, CommandSuccess, MessageIdData,
    ServerError, base_command::Type,
};
use pulsegate::testing::scripted_broker::{
    Received, Script, ScriptedBroker, Step, lookup_connect, partitions,
};
use serde_json::Value;

fn pulsegate(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pulsegate"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("PULSAR_") || name.starts_with("PULSEGATE_") {
            command.env_remove(name);
        }
    }
    command.args(arguments).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    pulsegate(arguments).output().expect("run")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs the binary without standing in the way of the broker.
async fn run_beside(arguments: &[&str]) -> Output {
    let mut command = pulsegate(arguments);
    tokio::task::spawn_blocking(move || command.output().expect("run"))
        .await
        .expect("no panic")
}

/// A broker of topics without partitions that opens producers and does with the SEND of number `n` what `on_send` says.
async fn broker(
    on_send: impl Fn(u64, &Received) -> Vec<Step> + Send + Sync + 'static,
) -> (ScriptedBroker, String) {
    let broker = ScriptedBroker::start(Script::new()).await;
    let url = broker.url();
    let own = url.clone();
    let script = Script::new()
        .on(Type::PartitionedMetadata, |received| {
            vec![Step::Send(partitions(received.request_id(), 0))]
        })
        .on(Type::Lookup, move |received| {
            vec![Step::Send(lookup_connect(received.request_id(), &own))]
        })
        .on(Type::Producer, |received| {
            vec![Step::Send(Wire::from(CommandProducerSuccess {
                request_id: received.request_id(),
                producer_name: "p".to_owned(),
                last_sequence_id: Some(-1),
                ..CommandProducerSuccess::default()
            }))]
        })
        .on(Type::Send, move |received| {
            let Wire::Send(send) = &received.command else {
                panic!("SEND has its rule");
            };
            on_send(send.sequence_id, received)
        })
        .on(Type::CloseProducer, |received| {
            vec![Step::Send(Wire::from(CommandSuccess {
                request_id: received.request_id(),
                ..CommandSuccess::default()
            }))]
        });
    broker.set_script(script);
    (broker, url)
}

fn receipt(received: &Received) -> Vec<Step> {
    let Wire::Send(send) = &received.command else {
        panic!("SEND has its rule");
    };
    vec![Step::Send(Wire::from(CommandSendReceipt {
        producer_id: send.producer_id,
        sequence_id: send.sequence_id,
        message_id: Some(MessageIdData {
            ledger_id: 3,
            entry_id: send.sequence_id,
            ..MessageIdData::default()
        }),
        ..CommandSendReceipt::default()
    }))]
}

fn report(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(output)))
}

fn number(report: &Value, pointer: &str) -> f64 {
    let value = report.pointer(pointer).and_then(Value::as_f64);
    value.unwrap_or_else(|| panic!("{pointer} in {report}"))
}

/// Of 100 messages a second for two seconds fifty are answered: the rest waits longer than the report's median.
fn is_charged(report: &Value) {
    assert_eq!(report["messages"], 50, "{report}");
    let lost = number(report, "/unanswered") + number(report, "/unsent");
    let due = 100.0 * number(report, "/seconds");
    // A machine that is busy may notice late that the time is over.
    assert!((due - 60.0..due + 100.0).contains(&lost), "{report}");
    assert!(number(report, "/latency/p50_ms") > 500.0, "{report}");
    assert!(number(report, "/latency/max_ms") > 1500.0, "{report}");
    assert!(number(report, "/seconds") < 10.0, "{report}");
}

const TWO_SECONDS: [&str; 9] = [
    "-r",
    "100",
    "-time",
    "2",
    "--warmup-time",
    "0",
    "-db",
    "--json",
    "t",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_stops_answering_is_charged_for_every_message() {
    let (broker, url) = broker(|number, received| match number {
        0..50 => receipt(received),
        _ => Vec::new(),
    })
    .await;
    let command = ["perf", "produce", "-u", &url];
    let output = run_beside(&[&command[..], &TWO_SECONDS].concat()).await;
    assert_eq!(output.status.code(), Some(1));
    let whole = report(&output);
    is_charged(&whole);
    assert!(number(&whole, "/unanswered") > 100.0, "{whole}");
    assert_eq!(whole["failed"], 0);
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_had_no_room_to_be_sent_is_charged_as_well() {
    let (broker, url) = broker(|number, received| match number {
        0..50 => receipt(received),
        _ => Vec::new(),
    })
    .await;
    let command = ["perf", "produce", "-u", &url, "-o", "10"];
    let output = run_beside(&[&command[..], &TWO_SECONDS].concat()).await;
    assert_eq!(output.status.code(), Some(1));
    let windowed = report(&output);
    is_charged(&windowed);
    assert_eq!(windowed["unanswered"], 10);
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_dies_is_charged_for_every_message() {
    let (broker, url) = broker(|number, received| match number {
        0..50 => receipt(received),
        _ => vec![Step::Close],
    })
    .await;
    let command = ["perf", "produce", "-u", &url];
    let output = run_beside(&[&command[..], &TWO_SECONDS].concat()).await;
    assert_eq!(output.status.code(), Some(1));
    is_charged(&report(&output));
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_comparison_tells_which_target_never_answered() {
    let (dead, dead_url) = broker(|_, _| Vec::new()).await;
    let (alive, alive_url) = broker(|_, received| receipt(received)).await;
    let (alive_target, dead_target) = (format!("a={alive_url}"), format!("b={dead_url}"));
    let compare = [
        "perf",
        "compare",
        "--target",
        &alive_target,
        "--target",
        &dead_target,
        "--rounds",
        "1",
        "--",
        "produce",
    ];
    let load = ["-r", "100", "-time", "1", "--warmup-time", "0", "t"];
    let output = run_beside(&[&compare[..], &load].concat()).await;
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let unanswered = |target: &str| {
        let begins = format!("{target}: 0 messages failed, ");
        let line = printed.lines().find_map(|line| line.strip_prefix(&begins));
        let count = line.and_then(|rest| rest.split(' ').next());
        count.map_or(0, |count| count.parse::<u32>().unwrap())
    };
    // On a slow machine the other one may owe some as well.
    assert!(unanswered("b") > unanswered("a"), "{printed}");
    alive.stop().await;
    dead.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_ends_the_test_where_that_is_asked_for() {
    let (broker, url) = broker(|number, received| {
        let Wire::Send(send) = &received.command else {
            panic!("SEND has its rule");
        };
        if number % 3 < 2 {
            return receipt(received);
        }
        vec![Step::Send(Wire::from(CommandSendError {
            producer_id: send.producer_id,
            sequence_id: send.sequence_id,
            error: ServerError::NotAllowedError.into(),
            message: "not this one".to_owned(),
        }))]
    })
    .await;
    let output = run_beside(&[
        "perf", "produce", "-u", &url, "-time", "600", "-r", "100", "-db", "-ef", "--json", "t",
    ])
    .await;
    assert_eq!(output.status.code(), Some(1));
    let report = report(&output);
    assert!(number(&report, "/failed") >= 1.0, "{report}");
    let reason = report["failures"][0]["reason"].as_str();
    assert!(reason.is_some_and(|reason| reason.contains("not this one")));
    assert!(number(&report, "/seconds") < 60.0, "{report}");
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_signal_ends_with_a_report_and_the_second_one_at_once() {
    let (broker, url) = broker(|_, _| Vec::new()).await;
    for (signals, code) in [(&["-INT"][..], 1), (&["-INT", "-TERM"], 130)] {
        let mut child = pulsegate(&["perf", "produce", "-u", &url, "-m", "10", "-r", "0", "t"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("start");
        let before = broker.received_of(Type::Send).len();
        broker.wait_for(Type::Send, before + 1).await;
        let begin = Instant::now();
        for signal in signals {
            kill(&child, signal);
        }
        let output = tokio::task::spawn_blocking(move || {
            let status = child.wait().expect("wait");
            let mut out = String::new();
            let pipe = child.stdout.as_mut().expect("piped");
            std::io::Read::read_to_string(pipe, &mut out).expect("text");
            (status.code(), out)
        });
        let (ended, out) = output.await.expect("no panic");
        assert_eq!(ended, Some(code), "{out}");
        assert_eq!(out.contains("unanswered  10"), code == 1, "{out}");
        assert_eq!(out.is_empty(), code == 130, "{out}");
        // The grace is two seconds; a machine that is busy may add some.
        assert!(begin.elapsed().as_secs() < 20);
    }
    broker.stop().await;
}

fn kill(child: &Child, signal: &str) {
    let sent = Command::new("kill")
        .args([signal, &child.id().to_string()])
        .status();
    assert!(sent.expect("kill").success());
}

/// A null broker of the binary; killed when dropped.
struct NullBroker {
    child: Child,
    url: String,
}

impl NullBroker {
    fn start(arguments: &[&str]) -> Self {
        let listen = ["perf", "null-broker", "--listen", "127.0.0.1:0"];
        let mut child = pulsegate(&[&listen[..], arguments].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
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
}

impl Drop for NullBroker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn as_many_messages_are_received_as_are_wanted() {
    let broker = NullBroker::start(&["--size", "100", "--batch", "30"]);
    let url = broker.url.as_str();
    for arguments in [
        &["read", "-n", "5"][..],
        &["consume", "-m", "5"],
        &[
            "consume", "-m", "50001", "-st", "Shared", "-n", "3", "-threads", "2",
        ],
    ] {
        let command = [&["perf"], arguments, &["-u", url, "--json", "t"]].concat();
        let output = run(&command);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let wanted: u64 = arguments[2].parse().expect("a number");
        assert_eq!(report(&output)["messages"], wanted, "{arguments:?}");
    }
}

/// Runs with wrong arguments, of which nothing but the list of them may come.
fn wrong(arguments: &[&str]) -> String {
    let output = run(arguments);
    let printed = stderr(&output);
    assert_eq!(output.status.code(), Some(64), "{arguments:?}: {printed}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    printed
}

#[test]
fn everything_wrong_is_told_at_once_negative_numbers_included() {
    let cases: [(&[&str], &[&str]); 5] = [
        (
            &[
                "produce",
                "t",
                "-r",
                "-1",
                "-s",
                "1073741824",
                "-n",
                "0",
                "-o",
                "-1",
                "-b",
                "-3",
                "-z",
                "foo",
                "-am",
                "foo",
                "-mk",
                "foo",
                "-time",
                "x",
                "-threads",
                "4294967295",
                "-c",
                "0",
                "-t",
                "1000000000",
            ],
            &[
                "--rate: \"-1\" is not accepted; expected a number from 0 to 1000000000",
                "--size: \"1073741824\" is not accepted; expected a whole number from 0 to 67108864",
                "--num-producers: \"0\"",
                "--max-outstanding: \"-1\"",
                "--batch-time-window: \"-3\"",
                "--compression: \"foo\"",
                "--access-mode: \"foo\"",
                "--message-key-generation-mode: \"foo\"",
                "--test-duration: \"x\"",
                "--num-test-threads: \"4294967295\" is not accepted; expected a whole number from 1 to 1000",
                "--max-connections: \"0\"",
                "--num-topics: \"1000000000\" is not accepted; expected a whole number from 1 to 100000",
            ],
        ),
        (
            &[
                "consume",
                "t",
                "--nope",
                "-r",
                "--json",
                "--json",
                "-ns",
                "1000000000",
                "-time",
                "18446744073709551615",
            ],
            &[
                "--nope: unknown flag",
                "--rate: its value is missing",
                "--json: is given more than once",
                "--num-subscriptions: \"1000000000\" is not accepted; expected a whole number from 1 to 100000",
                "--test-duration: \"18446744073709551615\" is not accepted; expected a whole number up to 300000000",
            ],
        ),
        (
            &[
                "null-broker",
                "--listen",
                "nope",
                "--advertised",
                "foo",
                "--partitions",
                "-1",
                "-s",
                "-1",
                "--batch",
                "-1",
                "--threads",
                "0",
            ],
            &[
                "--listen: ",
                "--advertised: ",
                "--partitions: \"-1\"",
                "--size: \"-1\"",
                "--batch: \"-1\"",
                "--threads: \"0\"",
            ],
        ),
        (
            &[
                "null-broker",
                "--listen",
                "127.0.0.1:0",
                "--size",
                "4000000",
                "--batch",
                "2",
            ],
            &["--size, --batch: entries of 8000064 bytes are larger than 5242880 bytes"],
        ),
        (
            &[
                "compare",
                "--target",
                "a=pulsar://x:1",
                "--target",
                "a=foo",
                "--rounds",
                "0",
                "--pid",
                "c=1",
                "--",
                "nope",
            ],
            &[
                "LOAD: \"nope\" is not accepted; expected produce, consume or read with its flags",
                "--target: two targets have the name \"a\"",
                "--pid: \"c\" is no target",
                "--rounds: \"0\"",
            ],
        ),
    ];
    for (arguments, expected) in cases {
        let printed = wrong(&[&["perf"], arguments].concat());
        for expected in expected {
            assert!(
                printed.contains(expected),
                "{expected}\nis not in\n{printed}"
            );
        }
        let plural = if expected.len() == 1 { "" } else { "s" };
        let count = format!("the arguments have {} problem{plural}:", expected.len());
        assert!(printed.contains(&count), "{count}\nis not in\n{printed}");
    }
    let printed = wrong(&["perf", "compare"]);
    for expected in ["LOAD: is missing", "--target: at least two"] {
        assert!(printed.contains(expected), "{printed}");
    }
}

#[test]
fn a_machine_without_threads_to_give_is_an_error_and_no_panic() {
    for (arguments, expected) in [
        (
            &[
                "perf",
                "produce",
                "-u",
                "pulsar://127.0.0.1:1",
                "-threads",
                "3",
                "t",
            ][..],
            "cannot start a thread: ",
        ),
        (
            &[
                "perf",
                "null-broker",
                "--listen",
                "127.0.0.1:0",
                "--threads",
                "2",
            ],
            "cannot start the runtime: ",
        ),
        (
            &["produce", "t", "-m", "x"],
            "cannot start the thread that writes the log: ",
        ),
        (
            &["gateway", "--broker", "pulsar://127.0.0.1:1"],
            "cannot start the thread that writes the log: ",
        ),
    ] {
        let mut command = pulsegate(arguments);
        // There is no room for such a stack in any address space.
        command.env("RUST_MIN_STACK", (1_u64 << 47).to_string());
        let output = command.output().expect("run");
        let printed = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {printed}");
        assert!(printed.contains(expected), "{arguments:?}: {printed}");
        assert!(!printed.contains("panicked"), "{printed}");
    }
}
