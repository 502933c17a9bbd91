//! `pulsegate produce`, `consume` and `read` through the built binary, against brokers that answer by script. Real ones are
//! `tests/compat/cli.py`'s.

use std::io::Read as _;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use pulsegate::protocol::batch::{BatchBuilder, BatchLimits};
use pulsegate::protocol::command::Command as Wire;
use pulsegate::protocol::frame::Frame;
use pulsegate::protocol::message::{MessageForm, encode};
use pulsegate::protocol::proto::pulsar::{
    CommandAckResponse, CommandGetLastMessageIdResponse, CommandMessage, CommandProducerSuccess,
    CommandSendReceipt, CommandSuccess, CompressionType, MessageIdData, MessageMetadata,
    ServerError, SingleMessageMetadata, base_command::Type,
};
use pulsegate::testing::scripted_broker::{
    Received, Script, ScriptedBroker, Step, connected_with, error, lookup_connect, partitions,
};

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

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn all_wrong_arguments_are_listed_with_those_of_the_connection() {
    let cases: [(&[&str], &[&str]); 3] = [
        (
            &[
                "produce",
                "--url",
                "nowhere",
                "-n",
                "0",
                "-vs",
                "xml",
                "--auth-plugin",
                "x",
            ],
            &[
                "TOPIC: is missing",
                "-n, --num-produce: \"0\"",
                "-vs, --value-schema: ",
                "-m, --messages: there is nothing to send",
                "--url: brokerServiceUrl",
                "--auth-plugin: ",
            ],
        ),
        (
            &["consume", "t", "-t", "Any", "--url", "nowhere"],
            &[
                "-s, --subscription-name: is missing",
                "-t, --subscription-type",
                "--url: ",
            ],
        ),
        (
            &[
                "--url",
                "nowhere",
                "read",
                "t",
                "-m",
                "x",
                "-ekv",
                "file:///key",
            ],
            &[
                "-m, --start-message-id: \"x\"",
                "-ekv, --encryption-key-value: not supported",
                "--url: ",
            ],
        ),
    ];
    for (arguments, expected) in cases {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(64), "{arguments:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        let printed = stderr(&output);
        let count = format!("the arguments have {} problems:", expected.len());
        for expected in expected.iter().copied().chain([count.as_str()]) {
            assert!(
                printed.contains(expected),
                "{expected}\nis not in\n{printed}"
            );
        }
    }
    for arguments in [
        &["produce", "t", "--no-such", "-n", "-1", "-r", "x"][..],
        &["produce", "t", "-r", "x", "--no-such", "value", "-n", "-1"],
    ] {
        let printed = stderr(&run(arguments));
        for expected in [
            "the arguments have 4 problems:",
            "--no-such: unknown flag",
            "-n, --num-produce: \"-1\"",
            "-r, --rate: \"x\"",
            "-m, --messages: there is nothing to send",
        ] {
            assert!(printed.contains(expected), "{expected} is not in {printed}");
        }
    }
    for unknown in [
        &["produce", "t", "--no-such"][..],
        &["consume", "t", "u", "-s", "x"],
        &["read", "-n"],
    ] {
        assert_eq!(run(unknown).status.code(), Some(64), "{unknown:?}");
    }
}

#[test]
fn what_cannot_be_consumed_is_refused_before_anything_is_connected() {
    for (arguments, expected) in [
        (
            &["consume", "t(", "--regex", "-s", "s"][..],
            "TOPIC: \"t(\": it is no regular expression: unclosed group",
        ),
        (
            &["consume", "a//b", "--regex", "-s", "s"],
            "TOPIC: \"a//b\": it names no namespace: ",
        ),
        (
            &["consume", "t", "-s", " "],
            "-s, --subscription-name: is missing",
        ),
        (
            &["produce", "t", "-f", "/dev/zero"],
            "-f, --files: /dev/zero: has more than 67108864 bytes",
        ),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(64), "{arguments:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        let printed = stderr(&output);
        assert!(printed.contains(expected), "{expected} is not in {printed}");
    }
}

#[test]
fn a_wrong_variable_is_listed_with_the_arguments() {
    let mut command = pulsegate(&["produce", "t", "-n", "0"]);
    let output = command.env("PULSEGATE_LOG", "loud=").output().expect("run");
    assert_eq!(output.status.code(), Some(64));
    let printed = stderr(&output);
    for expected in [
        "environment PULSEGATE_LOG: \"loud=\" is no log level",
        "-n, --num-produce: \"0\"",
    ] {
        assert!(printed.contains(expected), "{expected} is not in {printed}");
    }
}

#[test]
fn an_argument_that_is_no_text_is_named() {
    use std::os::unix::ffi::OsStrExt as _;
    let mut command = pulsegate(&["produce", "t", "-m"]);
    command.arg(std::ffi::OsStr::from_bytes(b"\xff\xfe"));
    let output = command.args(["-n", "0"]).output().expect("run");
    assert_eq!(output.status.code(), Some(64));
    let printed = stderr(&output);
    for expected in [
        "argument 4, \"\u{fffd}\u{fffd}\": is not UTF-8",
        "-n, --num-produce: \"0\"",
    ] {
        assert!(printed.contains(expected), "{expected} is not in {printed}");
    }
}

#[test]
fn help_names_every_option_of_pulsar_client() {
    let common = [
        "--url",
        "--auth-plugin",
        "--auth-params",
        "--listener-name",
        "--tlsTrustCertsFilePath",
        "[-ml]",
        "--json",
    ];
    for (command, options) in [
        (
            "produce",
            "-c, --chunking|[-db]|[-dr]|[-ekn]|[-ekv]|-f, --files|-k, --key|[-ks]|[-kvet]|[-kvk]|[-kvkf]|-m, --messages|\
             -n, --num-produce|-p, --properties|-r, --rate|-s, --separator|[-vs]",
        ),
        (
            "consume",
            "[-ac]|[-ca]|[-ekv]|[-etp]|--hex|--hide-content|-m, --subscription-mode|[-mc]|[-mp]|-n, --num-messages|\
             -p, --subscription-position|[-pm]|-q, --queue-size|-r, --rate|--regex|[-rs]|-s, --subscription-name|[-st]|\
             [-stp]|-t, --subscription-type",
        ),
        (
            "read",
            "[-ac]|[-ca]|[-ekv]|--hex|--hide-content|-i, --start-message-id-inclusive|-m, --start-message-id|[-mc]|[-mp]|\
             -n, --num-messages|[-pm]|-q, --queue-size|-r, --rate|[-st]",
        ),
    ] {
        let output = run(&[command, "--help"]);
        assert_eq!(output.status.code(), Some(0), "{command}");
        let help = stdout(&output);
        for option in options.split('|').chain(common) {
            assert!(
                help.contains(option),
                "{option} is not in the help of {command}"
            );
        }
    }
}

/// A broker of topics without partitions that it serves itself.
async fn broker(extend: impl FnOnce(Script) -> Script) -> (ScriptedBroker, String) {
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
        .on(Type::Send, |received| vec![Step::Send(receipt(received))])
        .on(Type::Subscribe, success)
        .on(Type::Ack, acknowledged)
        .on(Type::Seek, success)
        .on(Type::CloseProducer, success)
        .on(Type::CloseConsumer, success);
    broker.set_script(extend(script));
    (broker, url)
}

fn success(received: &Received) -> Vec<Step> {
    let request_id = received.request_id();
    vec![Step::Send(Wire::from(CommandSuccess {
        request_id,
        ..CommandSuccess::default()
    }))]
}

fn acknowledged(received: &Received) -> Vec<Step> {
    let Wire::Ack(ack) = &received.command else {
        panic!("ACK has its rule");
    };
    vec![Step::Send(Wire::from(CommandAckResponse {
        consumer_id: ack.consumer_id,
        request_id: ack.request_id,
        ..CommandAckResponse::default()
    }))]
}

fn receipt(received: &Received) -> Wire {
    let Wire::Send(send) = &received.command else {
        panic!("SEND has its rule");
    };
    Wire::from(CommandSendReceipt {
        producer_id: send.producer_id,
        sequence_id: send.sequence_id,
        message_id: Some(MessageIdData {
            ledger_id: 3,
            entry_id: send.sequence_id,
            ..MessageIdData::default()
        }),
        ..CommandSendReceipt::default()
    })
}

/// Runs the binary without standing in the way of the broker.
async fn run_beside(arguments: &[&str]) -> Output {
    let mut command = pulsegate(arguments);
    tokio::task::spawn_blocking(move || command.output().expect("run"))
        .await
        .expect("no panic")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_a_receipt_is_counted() {
    let (broker, url) = broker(|script| script).await;
    let output = run_beside(&["produce", "--url", &url, "t", "-m", "a,b", "-n", "2"]).await;
    assert_eq!(stdout(&output), "4 messages successfully produced\n");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(broker.received_of(Type::Send).len(), 4);
    let output = run_beside(&["produce", "--url", &url, "t", "-m", "a", "--json"]).await;
    assert_eq!(
        stdout(&output),
        "{\"topic\":\"persistent://public/default/t\",\"messageId\":\"3:0:-1\",\"size\":1}\n"
    );
    assert!(stderr(&output).contains("1 messages successfully produced"));
    let output = run_beside(&[
        "produce", "--url", &url, "t", "-m", "a", "--json", "--quiet",
    ])
    .await;
    assert!(output.stderr.is_empty(), "{}", stderr(&output));
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_told_and_fails() {
    let refuse = |received: &Received| {
        let request_id = received.request_id();
        vec![Step::Send(error(
            request_id,
            ServerError::AuthorizationError,
            "not yours",
        ))]
    };
    let (broker, url) = broker(|script| {
        script
            .on(Type::Producer, refuse)
            .on(Type::Subscribe, refuse)
    })
    .await;
    for (arguments, doing, done) in [
        (&["produce", "t", "-m", "a"][..], "producing", "produced"),
        (&["consume", "t", "-s", "s"], "consuming", "consumed"),
        (&["read", "t"], "reading", "read"),
    ] {
        let output = run_beside(&[arguments, &["--url", &url]].concat()).await;
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert_eq!(stdout(&output), format!("0 messages successfully {done}\n"));
        let printed = stderr(&output);
        assert!(
            printed.contains(&format!("error while {doing} messages: ")),
            "{printed}"
        );
        assert!(printed.contains("not yours"), "{printed}");
    }
    broker.stop().await;
}

/// Sends these payloads as soon as the consumer asks for messages.
fn deliver(payloads: &'static [&'static str]) -> impl Fn(&Received) -> Vec<Step> + Send + Sync {
    move |received| {
        let Wire::Flow(flow) = &received.command else {
            panic!("FLOW has its rule");
        };
        let message = |(entry, payload): (usize, &&'static str)| {
            let command = Wire::from(CommandMessage {
                consumer_id: flow.consumer_id,
                message_id: MessageIdData {
                    ledger_id: 3,
                    entry_id: u64::try_from(entry).expect("small"),
                    ..MessageIdData::default()
                },
                ..CommandMessage::default()
            });
            let metadata = MessageMetadata {
                producer_name: "p".to_owned(),
                sequence_id: 7,
                publish_time: 1,
                ..MessageMetadata::default()
            };
            let form = MessageForm {
                checksum: true,
                broker_entry: None,
            };
            let encoded = encode(&metadata, Bytes::from_static(payload.as_bytes()), form);
            Step::Frame(Frame {
                command: command.encode_command(),
                payload: [encoded.header, encoded.payload].concat().into(),
            })
        };
        payloads.iter().enumerate().map(message).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_printed_and_only_those_are_acknowledged() {
    let (broker, url) =
        broker(|script| script.on(Type::Flow, deliver(&["one", "two", "three"]))).await;
    let output = run_beside(&["consume", "--url", &url, "t", "-s", "s", "-n", "2"]).await;
    let line = |content| {
        format!(
            "----- got message -----\npublishTime:[1], eventTime:[0], key:[null], properties:[], content:{content}\n"
        )
    };
    let expected = [
        line("one"),
        line("two"),
        "2 messages successfully consumed\n".to_owned(),
    ]
    .concat();
    assert_eq!(stdout(&output), expected, "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(0));
    let acknowledged: Vec<u64> = broker
        .received_of(Type::Ack)
        .iter()
        .flat_map(|received| match &received.command {
            Wire::Ack(ack) => ack.message_id.iter().map(|id| id.entry_id).collect(),
            _ => Vec::new(),
        })
        .collect();
    assert_eq!(acknowledged, [0, 1]);
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_with_a_summary_and_the_end_of_the_reader_without_one() {
    let (broker, url) = broker(|script| script.on(Type::Flow, deliver(&["one"]))).await;
    for end_of_reader in [false, true] {
        let mut child = pulsegate(&["consume", "--url", &url, "t", "-s", "s", "-n", "0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start");
        let mut out = child.stdout.take().expect("piped");
        if end_of_reader {
            drop(out);
            // Whatever comes next cannot be printed.
            let output = child.wait_with_output().expect("wait");
            assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
            assert!(output.stderr.is_empty(), "{}", stderr(&output));
            continue;
        }
        let mut first = [0; "----- got message -----\n".len()];
        out.read_exact(&mut first).expect("a message");
        let sent = Command::new("kill")
            .args(["-INT", &child.id().to_string()])
            .status();
        assert!(sent.expect("kill").success());
        let mut rest = String::new();
        out.read_to_string(&mut rest).expect("the rest");
        assert!(
            rest.ends_with("content:one\n1 messages successfully consumed\n"),
            "{rest}"
        );
        assert_eq!(child.wait().expect("wait").code(), Some(0));
    }
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_what_waits_for_a_silent_broker() {
    let broker = ScriptedBroker::start(Script::empty()).await;
    let child = pulsegate(&["produce", "--url", &broker.url(), "t", "-m", "a"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("start");
    broker.wait_for(Type::Connect, 1).await;
    let sent = Command::new("kill")
        .args(["-TERM", &child.id().to_string()])
        .status();
    assert!(sent.expect("kill").success());
    let output = child.wait_with_output().expect("wait");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(stdout(&output), "0 messages successfully produced\n");
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_is_counted_and_told() {
    let flow = |received: &Received| {
        let mut steps = deliver(&["bad", "good"])(received);
        let Some(Step::Frame(frame)) = steps.first_mut() else {
            panic!("messages are frames");
        };
        let mut payload = frame.payload.to_vec();
        *payload.last_mut().expect("a payload") ^= 1;
        frame.payload = payload.into();
        steps
    };
    let (broker, url) = broker(|script| script.on(Type::Flow, flow)).await;
    for arguments in [&["consume", "-s", "s"][..], &["read"]] {
        let output = run_beside(&[arguments, &["--url", &url, "t"]].concat()).await;
        let printed = stdout(&output);
        assert!(printed.contains("content:good\n1 messages"), "{printed}");
        let count = "1 entries could not be read and were dropped\n";
        assert!(printed.ends_with(count), "{printed}");
        assert!(stderr(&output).contains(count), "{}", stderr(&output));
        assert!(stderr(&output).contains("checksum"), "{}", stderr(&output));
        assert_eq!(output.status.code(), Some(0));
    }
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledgements_that_no_broker_took_are_sent_again_or_a_failure() {
    let flow = |received: &Received| {
        let mut steps = deliver(&["one"])(received);
        steps.push(Step::Close);
        steps
    };
    for is_back in [true, false] {
        let count = AtomicUsize::new(0);
        let subscribe = move |received: &Received| {
            let is_first = count.fetch_add(1, Ordering::SeqCst) == 0;
            if is_first || is_back {
                success(received)
            } else {
                vec![Step::Close]
            }
        };
        let (broker, url) =
            broker(|script| script.on(Type::Flow, flow).on(Type::Subscribe, subscribe)).await;
        let output = run_beside(&["consume", "--url", &url, "t", "-s", "s"]).await;
        assert!(stdout(&output).contains("content:one\n"));
        let printed = stderr(&output);
        assert!(printed.contains("lost its connection"), "{printed}");
        let is_failure = printed.contains("cannot be acknowledged");
        assert_eq!(is_failure, !is_back, "{printed}");
        assert_eq!(output.status.code(), Some(i32::from(!is_back)));
        assert_eq!(!broker.received_of(Type::Ack).is_empty(), is_back);
        broker.stop().await;
    }
}

/// A message to whoever sent this FLOW.
fn message(received: &Received, entry_id: u64, metadata: &MessageMetadata, payload: Bytes) -> Step {
    let Wire::Flow(flow) = &received.command else {
        panic!("FLOW has its rule");
    };
    let command = Wire::from(CommandMessage {
        consumer_id: flow.consumer_id,
        message_id: MessageIdData {
            ledger_id: 3,
            entry_id,
            ..MessageIdData::default()
        },
        ..CommandMessage::default()
    });
    let encoded = encode(metadata, payload, MessageForm::default());
    Step::Frame(Frame {
        command: command.encode_command(),
        payload: encoded.to_bytes(),
    })
}

/// The entries of each ACK, behind the number of its connection.
fn entries_acknowledged(broker: &ScriptedBroker) -> Vec<(usize, Vec<u64>)> {
    let entries = |received: Received| match received.command {
        Wire::Ack(ack) => {
            let ids = ack.message_id.iter().map(|id| id.entry_id).collect();
            (received.connection, ids)
        }
        other => panic!("{other:?}"),
    };
    let acks = broker.received_of(Type::Ack).into_iter();
    acks.map(entries).collect()
}

/// Loses the connection instead of answering the first ACK.
fn lose_the_first() -> impl Fn(&Received) -> Vec<Step> + Send + Sync {
    let count = AtomicUsize::new(0);
    move |received| match count.fetch_add(1, Ordering::SeqCst) {
        0 => vec![Step::Close],
        _ => acknowledged(received),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledgement_of_a_batch_or_of_chunks_that_got_lost_is_sent_again_whole() {
    let metadata = MessageMetadata {
        producer_name: "p".to_owned(),
        publish_time: 1,
        ..MessageMetadata::default()
    };
    let chunk = |chunk_id| MessageMetadata {
        uuid: Some("u".to_owned()),
        num_chunks_from_msg: Some(2),
        total_chunk_msg_size: Some(4),
        chunk_id: Some(chunk_id),
        ..metadata.clone()
    };
    let mut builder = BatchBuilder::new(BatchLimits::default());
    for payload in [b"a", b"b"] {
        let single = SingleMessageMetadata::default();
        builder.push(single, payload).expect("room");
    }
    let (batch, payload) = builder
        .finish(metadata.clone(), CompressionType::None)
        .expect("small")
        .expect("messages");
    let first = [
        (0, chunk(0), Bytes::from_static(b"ab")),
        (1, chunk(1), Bytes::from_static(b"cd")),
        (2, batch, payload),
    ];
    let last = [(3, metadata, Bytes::from_static(b"last"))];
    let count = AtomicUsize::new(0);
    let flow = move |received: &Received| {
        let messages = match count.fetch_add(1, Ordering::SeqCst) {
            0 => &first[..],
            1 => &last[..],
            _ => &[],
        };
        messages
            .iter()
            .map(|(entry, metadata, payload)| message(received, *entry, metadata, payload.clone()))
            .collect()
    };
    let (broker, url) =
        broker(|script| script.on(Type::Flow, flow).on(Type::Ack, lose_the_first())).await;
    let output = run_beside(&["consume", "--url", &url, "t", "-s", "s", "-n", "4"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("content:last\n"));
    let acks = entries_acknowledged(&broker);
    let lost = acks[0].0;
    let answered = acks.iter().filter(|(connection, _)| *connection != lost);
    let mut entries: Vec<u64> = answered.flat_map(|(_, entries)| entries.clone()).collect();
    entries.sort_unstable();
    entries.dedup();
    assert_eq!(entries, [0, 1, 2, 3], "{acks:?}");
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_acknowledgement_is_a_failure_also_when_nobody_reads_the_messages() {
    let refuse = |received: &Received| {
        let Wire::Ack(ack) = &received.command else {
            panic!("ACK has its rule");
        };
        vec![Step::Send(Wire::from(CommandAckResponse {
            consumer_id: ack.consumer_id,
            request_id: ack.request_id,
            error: Some(ServerError::MetadataError.into()),
            ..CommandAckResponse::default()
        }))]
    };
    let (broker, url) = broker(|script| {
        script
            .on(Type::Flow, deliver(&["one"]))
            .on(Type::Ack, refuse)
    })
    .await;
    let mut child = pulsegate(&["consume", "--url", &url, "t", "-s", "s", "-n", "0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start");
    let mut out = child.stdout.take().expect("piped");
    let mut read = [0; "----- got message -----\n".len()];
    out.read_exact(&mut read).expect("a message");
    drop(out);
    // It was acknowledged; the next one cannot be printed.
    let flows = broker.wait_for(Type::Flow, 1).await;
    let metadata = MessageMetadata {
        producer_name: "p".to_owned(),
        publish_time: 1,
        ..MessageMetadata::default()
    };
    let next = message(&flows[0], 1, &metadata, Bytes::from_static(b"two"));
    broker.push(vec![next]);
    let output = tokio::task::spawn_blocking(move || child.wait_with_output().expect("wait"));
    let output = output.await.expect("no panic");
    assert_eq!(output.status.code(), Some(1));
    let printed = stderr(&output);
    assert!(printed.contains("cannot be acknowledged"), "{printed}");
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_without_answers_to_acknowledgements_is_asked_something_else() {
    let old = |_: &Received| vec![Step::Send(connected_with(16, None))];
    let last = |received: &Received| {
        vec![Step::Send(Wire::from(CommandGetLastMessageIdResponse {
            request_id: received.request_id(),
            ..CommandGetLastMessageIdResponse::default()
        }))]
    };
    // The second one dies of the acknowledgement and does not come back.
    for dies in [false, true] {
        let is_dead = Arc::new(AtomicBool::new(false));
        let died = Arc::clone(&is_dead);
        let subscribe = move |received: &Received| {
            if is_dead.load(Ordering::SeqCst) {
                vec![Step::Close]
            } else {
                success(received)
            }
        };
        let ack = move |_: &Received| {
            if dies {
                died.store(true, Ordering::SeqCst);
                vec![Step::Close]
            } else {
                Vec::new()
            }
        };
        let (broker, url) = broker(|script| {
            script
                .on(Type::Connect, old)
                .on(Type::Flow, deliver(&["one"]))
                .on(Type::Ack, ack)
                .on(Type::Subscribe, subscribe)
                .on(Type::GetLastMessageId, last)
        })
        .await;
        let output = run_beside(&["consume", "--url", &url, "t", "-s", "s"]).await;
        assert!(stdout(&output).contains("content:one\n"));
        let printed = stderr(&output);
        assert_eq!(output.status.code(), Some(i32::from(dies)), "{printed}");
        assert_eq!(
            printed.contains("cannot be acknowledged"),
            dies,
            "{printed}"
        );
        broker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_with_receipts_are_produced_however_the_broker_takes_leave() {
    let refuse = |received: &Received| {
        let text = "no\u{1b}[2J\nsuccess";
        let request_id = received.request_id();
        vec![Step::Send(error(
            request_id,
            ServerError::MetadataError,
            text,
        ))]
    };
    let (broker, url) = broker(|script| script.on(Type::CloseProducer, refuse)).await;
    let output = run_beside(&["produce", "--url", &url, "t", "-m", "a"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stdout(&output), "1 messages successfully produced\n");
    let told = "did not confirm the end of the producer";
    let printed = stderr(&output);
    assert!(printed.contains(told), "{printed}");
    assert!(printed.ends_with("no\\u{1b}[2J\\nsuccess\n"), "{printed:?}");
    broker.stop().await;

    let (broker, url) = self::broker(|script| script.ignore(Type::CloseProducer)).await;
    let output = run_beside(&["produce", "--url", &url, "t", "-m", "a"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains(told), "{}", stderr(&output));
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_were_not_sent_because_nobody_reads_their_receipts_are_a_failure() {
    let (broker, url) = broker(|script| script).await;
    let mut child = pulsegate(&[
        "produce", "--url", &url, "t", "-m", "a", "-n", "500", "--json",
    ])
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .expect("start");
    drop(child.stdout.take());
    let output = tokio::task::spawn_blocking(move || child.wait_with_output().expect("wait"));
    let output = output.await.expect("no panic");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let printed = stderr(&output);
    assert!(printed.contains("standard output"), "{printed}");
    assert!(broker.received_of(Type::Send).len() < 500);
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_what_prints_to_a_pipe_that_nobody_reads() {
    const LARGE: &str = "a text that is longer than what a pipe takes without a reader";
    let payload: &'static str = LARGE.repeat(10_000).leak();
    let payloads: &'static [&'static str] = vec![payload].leak();
    let (broker, url) = broker(|script| script.on(Type::Flow, deliver(payloads))).await;
    let mut child = pulsegate(&["consume", "--url", &url, "t", "-s", "s", "-n", "0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start");
    let mut out = child.stdout.take().expect("piped");
    let mut first = [0; 10];
    out.read_exact(&mut first)
        .expect("the beginning of a message");
    let sent = Command::new("kill")
        .args(["-TERM", &child.id().to_string()])
        .status();
    assert!(sent.expect("kill").success());
    let output = tokio::task::spawn_blocking(move || child.wait_with_output().expect("wait"));
    let output = tokio::time::timeout(std::time::Duration::from_secs(60), output);
    let output = output.await.expect("an end").expect("no panic");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("nobody reads"),
        "{}",
        stderr(&output)
    );
    drop(out);
    assert!(broker.received_of(Type::Ack).is_empty());
    broker.stop().await;
}
