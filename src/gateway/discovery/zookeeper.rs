//! The live list of brokers in ZooKeeper: the children of `/loadbalance/brokers`, where each broker of Apache Pulsar has an
//! ephemeral node while it runs.
//!
//! Nothing is written there, and no session is needed to keep the gateway going: while ZooKeeper is away the last list stands.

use std::convert::Infallible;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};
use zookeeper_client::{Client, Error, EventType, OneshotWatcher};

use super::announcement::{AnnouncementError, Wanted, read};
use super::state::Announced;
use crate::client::{Backoff, BackoffPolicy};
use crate::config::ZooKeeperUrl;

/// Where the list is and how it is read.
#[derive(Debug)]
pub(crate) struct Watch<'a> {
    pub(crate) store: &'a ZooKeeperUrl,
    pub(crate) session_timeout: Duration,
    pub(crate) wanted: Wanted<'a>,
    /// Seed of the times between attempts to connect.
    pub(crate) seed: u64,
}

/// Why a session with ZooKeeper ended.
#[derive(Debug, thiserror::Error)]
enum SessionEnd {
    #[error("no answer within {0:?}")]
    TooSlow(Duration),
    #[error("{0}")]
    ZooKeeper(#[from] Error),
    #[error("the session has expired")]
    Expired,
}

impl Watch<'_> {
    /// Watches for ever; each list that is read goes to `on_list`. Cancel-safe.
    pub(crate) async fn run(&self, on_list: &(dyn Fn(Vec<Announced>) + Sync)) -> Infallible {
        let mut backoff = Backoff::new(RECONNECT, self.seed);
        loop {
            let mut listed = false;
            let Err(end) = self
                .session(&mut |list| {
                    listed = true;
                    on_list(list);
                })
                .await;
            if listed {
                backoff.reset();
            }
            let wait = backoff.next().unwrap_or(RECONNECT.max);
            warn!(store = %self.store, ?wait, "ZooKeeper is away, going on with the brokers known so far: {end}");
            sleep(wait).await;
        }
    }

    /// One session, until it ends.
    async fn session(
        &self,
        on_list: &mut (dyn FnMut(Vec<Announced>) + Send),
    ) -> Result<Infallible, SessionEnd> {
        let limit = self.session_timeout.min(ANSWER_TIMEOUT);
        let connector = Client::connector().with_session_timeout(self.session_timeout);
        let servers = self.store.connect_string();
        let client = within(limit, connector.connect(&servers)).await?;
        info!(store = %self.store, "connected to ZooKeeper");
        let mut complained = false;
        loop {
            let watcher = match within(limit, client.list_and_watch_children(BROKERS)).await {
                Ok((names, watcher)) => {
                    on_list(self.brokers(&client, names, &mut complained).await?);
                    watcher
                }
                Err(SessionEnd::ZooKeeper(Error::NoNode)) => {
                    info!("no broker has been in ZooKeeper yet: there is no {BROKERS}");
                    let stat = client.check_and_watch_stat(BROKERS);
                    match within(limit, stat).await? {
                        (Some(_), _) => continue,
                        (None, watcher) => watcher,
                    }
                }
                Err(error) => return Err(error),
            };
            until_changed(watcher).await?;
            // A cluster that starts changes the list once per broker; reading it once for several is enough.
            sleep(PAUSE).await;
        }
    }

    async fn brokers(
        &self,
        client: &Client,
        mut names: Vec<String>,
        complained: &mut bool,
    ) -> Result<Vec<Announced>, SessionEnd> {
        let limit = self.session_timeout.min(ANSWER_TIMEOUT);
        names.sort();
        let mut problem: Option<(String, AnnouncementError)> = None;
        if names.len() > BROKERS_MAX {
            warn!(
                brokers = names.len(),
                "only the first {BROKERS_MAX} brokers in ZooKeeper are used"
            );
            names.truncate(BROKERS_MAX);
        }
        let mut brokers = Vec::with_capacity(names.len());
        for name in names {
            let path = format!("{BROKERS}/{name}");
            let value = match within(limit, client.get_data(&path)).await {
                Ok((value, _)) => value,
                // It ended between the two questions.
                Err(SessionEnd::ZooKeeper(Error::NoNode)) => continue,
                Err(error) => return Err(error),
            };
            match read(&value, self.wanted) {
                Ok(broker) => brokers.push(broker),
                Err(error) => problem = Some((name, error)),
            }
        }
        match problem {
            Some((name, error)) if !*complained => {
                warn!(broker = %name.escape_debug(), "a broker in ZooKeeper cannot be used: {error}");
                *complained = true;
            }
            Some((name, error)) => debug!(broker = %name.escape_debug(), "cannot be used: {error}"),
            None => *complained = false,
        }
        Ok(brokers)
    }
}

/// Until the node changes, or for [`REREAD`]: a broker that comes back with other URLs need not have left the list long enough to
/// be missed.
async fn until_changed(watcher: OneshotWatcher) -> Result<(), SessionEnd> {
    match timeout(REREAD, watcher.changed()).await {
        Ok(event) if event.event_type == EventType::Session => Err(SessionEnd::Expired),
        Ok(_) | Err(_) => Ok(()),
    }
}

async fn within<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, Error>>,
) -> Result<T, SessionEnd> {
    match timeout(limit, answer).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(SessionEnd::TooSlow(limit)),
    }
}

/// Apache's LoadManager.LOADBALANCE_BROKERS_ROOT.
const BROKERS: &str = "/loadbalance/brokers";
/// Brokers that are taken from the list: more than any one cluster has.
const BROKERS_MAX: usize = 1000;
const RECONNECT: BackoffPolicy = BackoffPolicy {
    initial: Duration::from_millis(250),
    max: Duration::from_secs(10),
    jitter: 0.2,
    deadline: None,
};
/// Bound on one answer; within it the client tries all servers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);
const REREAD: Duration = Duration::from_secs(60);
