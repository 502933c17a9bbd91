//! `/proxy-stats`: what passes through, in the JSON of the Apache proxy.

use std::sync::atomic::{AtomicU8, Ordering};

use hyper::Method;
use serde_json::{Map, Value, json};

use crate::gateway::GatewayHandle;
use crate::http::{Answer, Response, method_not_allowed};

/// The endpoints of one gateway.
#[derive(Debug)]
pub(super) struct ProxyStats {
    gateway: GatewayHandle,
    log_level: AtomicU8,
}

impl ProxyStats {
    pub(super) fn new(gateway: GatewayHandle, log_level: u8) -> Self {
        Self {
            gateway,
            log_level: AtomicU8::new(log_level),
        }
    }

    /// Answers a request for `path`, which is below `/proxy-stats`.
    pub(super) fn answer(&self, method: &Method, path: &str) -> Answer {
        let reads = *method == Method::GET || *method == Method::HEAD;
        let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
        match segments.as_slice() {
            ["proxy-stats", "connections"] if reads => json_answer(&self.connections()),
            ["proxy-stats", "topics"] if reads => json_answer(&self.topics()),
            ["proxy-stats", "logging"] if reads => {
                json_answer(&json!(self.log_level.load(Ordering::Relaxed)))
            }
            ["proxy-stats", "connections" | "topics" | "logging"] => {
                method_not_allowed("GET, HEAD")
            }
            // As there: what is no number is no such path.
            ["proxy-stats", "logging", level] if level.parse::<i32>().is_ok() => {
                if *method != Method::POST {
                    return method_not_allowed("POST");
                }
                self.set_log_level(level)
            }
            _ => Response::text(404, "not found\n").into(),
        }
    }

    fn set_log_level(&self, level: &str) -> Answer {
        match level.parse() {
            Ok(level @ 0..=2) => {
                self.log_level.store(level, Ordering::Relaxed);
                let mut answer = Answer::new(crate::http::Body::empty());
                *answer.status_mut() = hyper::StatusCode::NO_CONTENT;
                answer
            }
            _ => failure(412, "Proxy log level can be only [0-2]"),
        }
    }

    fn connections(&self) -> Value {
        let connections = self.gateway.connections().into_iter().map(|connection| {
            json!({
                "requestRate": connection.request_rate,
                "byteRate": connection.byte_rate,
                "clientAddress": format!("/{}", connection.client),
                "brokerAddress": connection.broker.map(|broker| format!("/{broker}")),
            })
        });
        connections.collect()
    }

    fn topics(&self) -> Value {
        let topics = self.gateway.topics().into_iter().map(|topic| {
            let rates = json!({
                "msgRateIn": topic.messages_in,
                "msgByteIn": topic.bytes_in,
                "msgRateOut": topic.messages_out,
                "msgByteOut": topic.bytes_out,
            });
            (topic.topic, rates)
        });
        Value::Object(topics.collect::<Map<String, Value>>())
    }
}

fn json_answer(value: &Value) -> Answer {
    Response::json(200, value.to_string()).into()
}

/// An error in the form of Pulsar's REST services.
fn failure(status: u16, reason: &str) -> Answer {
    Response::json(status, json!({ "reason": reason }).to_string()).into()
}
