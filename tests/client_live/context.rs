//! What a case works with.

use std::{future::Future, pin::Pin, process::Stdio, time::Duration};

use anyhow::{Context as _, Result, bail};
use pulsegate::{
    client::{
        ClientOptions, PulsarClient,
        consumer::{Consumer, ReceivedMessage},
    },
    naming::{ServiceUrl, TopicName},
};

/// A case.
pub(crate) type Case = fn(Context) -> Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// The table of the cases of a module: functions of a [`Context`].
macro_rules! cases {
    ($($name:ident),+ $(,)?) => {
        pub(crate) fn cases() -> Vec<(&'static str, $crate::context::Case)> {
            vec![$( (stringify!($name), |context| Box::pin($name(context))) ),+]
        }
    };
}

/// A cluster and a name that no other run has.
pub(crate) struct Context {
    pub(crate) service_url: String,
    pub(crate) admin_url: String,
    pub(crate) client: PulsarClient,
    name: String,
}

impl Context {
    pub(crate) fn new(service_url: &str, admin_url: &str, case: &str) -> Self {
        let url: ServiceUrl = service_url.parse().expect("a service URL");
        let time = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .expect("a clock after 1970");
        let mut options = ClientOptions::default();
        if let Ok(level) = std::env::var("CLIENT_LIVE_LOG") {
            let _ = tracing_subscriber::fmt().with_env_filter(level).try_init();
        }
        options.operation_timeout = Duration::from_secs(60);
        Self {
            service_url: service_url.to_owned(),
            admin_url: admin_url.to_owned(),
            client: PulsarClient::new(url, options),
            name: format!("{case}-{:x}", time.as_micros()),
        }
    }

    /// A topic of this run.
    pub(crate) fn topic(&self, suffix: &str) -> TopicName {
        let name = format!("persistent://public/default/{}-{suffix}", self.name);
        TopicName::parse(&name).expect("a topic name")
    }

    /// The name that the topics of this run begin with.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Runs `helper.py`: the official Python client, and the admin API. Returns what it printed.
    pub(crate) async fn helper(&self, arguments: &[&str]) -> Result<String> {
        let python = std::env::var("CLIENT_LIVE_PYTHON").unwrap_or_else(|_| "python3".to_owned());
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/client_live/helper.py");
        let (service_url, admin_url) = (self.service_url.clone(), self.admin_url.clone());
        let arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
        let output = tokio::task::spawn_blocking(move || {
            std::process::Command::new(python)
                .arg(script)
                .args([service_url, admin_url])
                .args(arguments)
                .stdin(Stdio::null())
                .stderr(Stdio::piped())
                .output()
        })
        .await?
        .context("cannot run helper.py")?;
        if !output.status.success() {
            bail!("helper.py: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Runs `pulsar.py kill` or `start` for `FOLDER:NAME`.
    pub(crate) async fn peer(&self, arguments: &[&str; 2]) -> Result<()> {
        let [verb, peer] = *arguments;
        let (folder, name) = peer.rsplit_once(':').context("FOLDER:NAME")?;
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/pulsar.py");
        let arguments = [script, verb, folder, name].map(str::to_owned);
        let output = tokio::task::spawn_blocking(move || {
            std::process::Command::new("python3")
                .args(arguments)
                .output()
        })
        .await?
        .context("cannot run pulsar.py")?;
        if !output.status.success() {
            bail!("pulsar.py: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    }

    /// Publishes `message-0` to `message-{count - 1}` with the official client; further options of `helper.py produce`.
    pub(crate) async fn produce(
        &self,
        topic: &TopicName,
        count: usize,
        options: &[&str],
    ) -> Result<()> {
        let (topic, count) = (topic.to_string(), count.to_string());
        let mut arguments = vec!["produce", &topic, &count];
        arguments.extend(options);
        self.helper(&arguments).await.map(|_| ())
    }
}

/// The next message, which has to come soon.
pub(crate) async fn next(consumer: &Consumer) -> Result<ReceivedMessage> {
    let message = tokio::time::timeout(Duration::from_secs(30), consumer.recv()).await;
    Ok(message.context("no message came")??)
}

/// Nothing comes for a while.
pub(crate) async fn nothing(consumer: &Consumer, time: Duration) -> Result<()> {
    match tokio::time::timeout(time, consumer.recv()).await {
        Err(_) => Ok(()),
        Ok(message) => bail!("{:?} came", message?.id),
    }
}

/// The payload as text.
pub(crate) fn text(message: &ReceivedMessage) -> String {
    String::from_utf8_lossy(&message.payload).into_owned()
}
