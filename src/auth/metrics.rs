//! Counters of authentication: names and labels of Apache Pulsar.

use prometheus::IntCounterVec;

use super::token::TokenMetrics;
use crate::telemetry::{MetricError, MetricRegistry};

/// Who was authenticated and who was not, by provider.
#[derive(Debug, Clone)]
pub(super) struct AuthenticationMetrics {
    success: IntCounterVec,
    failures: IntCounterVec,
    pub(super) token: TokenMetrics,
}

impl AuthenticationMetrics {
    pub(super) fn register(registry: &MetricRegistry) -> Result<Self, MetricError> {
        Ok(Self {
            success: registry.counter_vec(
                "pulsar_authentication_success_total",
                "Credentials that were good.",
                &["provider_name", "auth_method"],
            )?,
            failures: registry.counter_vec(
                "pulsar_authentication_failures_total",
                "Credentials that were not good.",
                &["provider_name", "auth_method", "reason"],
            )?,
            token: TokenMetrics {
                expired: registry.counter(
                    "pulsar_expired_token_total",
                    "Tokens that had expired when they were presented.",
                )?,
                expiring_minutes: registry.histogram(
                    "pulsar_expiring_token_minutes",
                    "Minutes that tokens had left when they were presented.",
                    vec![5.0, 10.0, 60.0, 240.0],
                )?,
            },
        })
    }

    pub(super) fn succeeded(&self, provider: &str, method: &str) {
        self.success.with_label_values(&[provider, method]).inc();
    }

    pub(super) fn failed(&self, provider: &str, method: &str, reason: &str) {
        self.failures
            .with_label_values(&[provider, method, reason])
            .inc();
    }
}
