//! The broker connections that lookups use, and which clients share them.
//!
//! Brokers see a client by what CONNECT says of it. Clients of which the same is said, without a credential of their own in it, look
//! alike to a broker, so they are served over the same connections; any other client has connections of its own. Equal requests
//! on the same connections that are under way at the same time become one.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tracing::debug;

use super::Shared;
use super::connection::connection_options;
use super::introduction::LookupIntroduction;
use crate::client::{
    BackoffPolicy, BrokerPool, BrokerSource, Choice, ConnectionOptions, LookupFailure, PoolError,
    RequestError,
};
use crate::protocol::command::Command;
use crate::protocol::frame::Frame;

/// The connections of one client, or of all that look alike to a broker.
#[derive(Debug)]
pub(crate) struct LookupPool {
    brokers: BrokerPool,
    /// Requests under way by their encoded command without request id. No more than there are lookups in flight.
    flights: Mutex<HashMap<Bytes, Flight>>,
}

type Answer = Option<Result<Frame, Arc<LookupFailure>>>;

#[derive(Debug)]
struct Flight {
    started: Instant,
    /// Gone when the request was given up.
    answer: Weak<watch::Sender<Answer>>,
}

impl LookupPool {
    /// Its connections.
    pub(crate) fn brokers(&self) -> &BrokerPool {
        &self.brokers
    }

    /// The outcome of `ask`, or of an equal request that is under way. `key` tells which requests are equal. The request goes on as
    /// long as somebody waits for it, whoever was first. Cancel-safe.
    ///
    /// # Errors
    /// That of the request, shared by all that waited for it.
    pub(crate) async fn once<F>(
        self: &Arc<Self>,
        tracker: &TaskTracker,
        key: &Bytes,
        ask: impl Fn() -> F,
    ) -> Result<Frame, Arc<LookupFailure>>
    where
        F: Future<Output = Result<Frame, LookupFailure>> + Send + 'static,
    {
        loop {
            let mut answer = match self.join(key) {
                Some(answer) => answer,
                None => self.start(tracker, key.clone(), ask()),
            };
            // Between joining and the answer, the task may have found that nobody waited any more.
            if let Ok(answer) = answer.wait_for(Option::is_some).await
                && let Some(answer) = &*answer
            {
                return answer.clone();
            }
        }
    }

    /// Waits with others for an equal request, unless that is so old that its answer might be.
    fn join(&self, key: &Bytes) -> Option<watch::Receiver<Answer>> {
        let flights = self.flights.lock();
        let flight = flights.get(key)?;
        if flight.started.elapsed() > JOIN_WITHIN {
            return None;
        }
        Some(flight.answer.upgrade()?.subscribe())
    }

    fn start(
        self: &Arc<Self>,
        tracker: &TaskTracker,
        key: Bytes,
        ask: impl Future<Output = Result<Frame, LookupFailure>> + Send + 'static,
    ) -> watch::Receiver<Answer> {
        let (sender, answer) = watch::channel(None);
        let sender = Arc::new(sender);
        let flight = Flight {
            started: Instant::now(),
            answer: Arc::downgrade(&sender),
        };
        self.flights.lock().insert(key.clone(), flight);
        let landing = Landing {
            pool: Arc::downgrade(self),
            key,
            sender,
        };
        tracker.spawn(async move {
            let answer = tokio::select! {
                biased;
                () = landing.sender.closed() => return,
                answer = ask => answer.map_err(Arc::new),
            };
            // Off the list before it is published, so that no later request gets this answer.
            landing.off_the_list();
            landing.sender.send_replace(Some(answer));
        });
        answer
    }
}

/// A request under way; it leaves the list however its task ends.
struct Landing {
    pool: Weak<LookupPool>,
    key: Bytes,
    sender: Arc<watch::Sender<Answer>>,
}

impl Landing {
    fn off_the_list(&self) {
        let Some(pool) = self.pool.upgrade() else {
            return;
        };
        let mut flights = pool.flights.lock();
        // A younger one may have taken the place.
        if flights
            .get(&self.key)
            .is_some_and(|flight| flight.answer.as_ptr() == Arc::as_ptr(&self.sender))
        {
            flights.remove(&self.key);
        }
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        self.off_the_list();
    }
}

/// The pools that clients share.
#[derive(Debug)]
pub(crate) struct SharedPools {
    /// By the encoded CONNECT. At most [`SHARED_MAX`].
    pools: Mutex<HashMap<Bytes, Entry>>,
    /// The tasks of their connections, and of requests, which outlive those of clients.
    tracker: TaskTracker,
}

#[derive(Debug)]
struct Entry {
    pool: Arc<LookupPool>,
    /// Since when no client has it.
    unused_since: Option<Instant>,
}

impl SharedPools {
    pub(crate) fn new() -> Self {
        Self {
            pools: Mutex::default(),
            tracker: TaskTracker::new(),
        }
    }

    /// The tasks that [`close`](Self::close) waits for.
    pub(crate) fn tracker(&self) -> &TaskTracker {
        &self.tracker
    }

    /// The connections for a client of which `introduction` is said to brokers. Shared with all of whom the same is said, unless
    /// a credential of the client's own is in it.
    pub(crate) fn pool_for(
        &self,
        shared: &Arc<Shared>,
        introduction: LookupIntroduction,
    ) -> ClientPools {
        let common = if introduction.credential_of_client {
            None
        } else {
            self.common(shared, &introduction)
        };
        ClientPools {
            shared: Arc::clone(shared),
            introduction,
            common,
            own: OnceLock::new(),
        }
    }

    fn common(
        &self,
        shared: &Arc<Shared>,
        introduction: &LookupIntroduction,
    ) -> Option<Arc<LookupPool>> {
        let key = Command::from(introduction.connect.clone()).encode_command();
        let mut pools = self.pools.lock();
        if let Some(entry) = pools.get_mut(&key) {
            entry.unused_since = None;
            return Some(Arc::clone(&entry.pool));
        }
        if pools.len() >= SHARED_MAX {
            debug!("clients differ too much for all to share connections to brokers");
            return None;
        }
        let options = ConnectionOptions {
            authentication: introduction.authentication.clone(),
            tracker: self.tracker.clone(),
            max_in_flight: SHARED_IN_FLIGHT_MAX,
            ..connection_options(shared)
        };
        let pool = Arc::new(LookupPool {
            brokers: BrokerPool::of_source(
                Arc::clone(&shared.brokers) as Arc<dyn BrokerSource>,
                Choice::First,
                introduction.connect.clone(),
                options,
                SPARE_FAILED_BROKERS,
            ),
            flights: Mutex::default(),
        });
        let entry = Entry {
            pool: Arc::clone(&pool),
            unused_since: None,
        };
        pools.insert(key, entry);
        Some(pool)
    }

    /// Closes the pools that no client has had for [`UNUSED_MAX`]. To be called from time to time.
    pub(crate) fn close_unused(&self) {
        let now = Instant::now();
        self.pools.lock().retain(|_, entry| {
            // Its only other owners are clients and requests under way.
            if Arc::strong_count(&entry.pool) > 1 {
                entry.unused_since = None;
                return true;
            }
            let since = *entry.unused_since.get_or_insert(now);
            now.saturating_duration_since(since) < UNUSED_MAX
        });
    }

    /// Closes all and waits until their connections are gone.
    pub(crate) async fn close(&self) {
        for (_, entry) in self.pools.lock().drain() {
            entry.pool.brokers.close();
        }
        self.tracker.close();
        self.tracker.wait().await;
    }
}

/// What one client's lookups use.
#[derive(Debug)]
pub(crate) struct ClientPools {
    shared: Arc<Shared>,
    introduction: LookupIntroduction,
    common: Option<Arc<LookupPool>>,
    /// Used where there is none in common, or after that failed this client.
    own: OnceLock<Arc<LookupPool>>,
}

impl ClientPools {
    /// The connections to use now, and whether they are shared.
    pub(crate) fn current(&self) -> (&Arc<LookupPool>, bool) {
        match (self.own.get(), &self.common) {
            (None, Some(common)) => (common, true),
            (_, _) => (self.own(), false),
        }
    }

    /// Connections that nobody else uses, from now on. For a client whose request did not get over the shared ones: it may be
    /// the request that makes brokers close them, and the others must not suffer.
    pub(crate) fn own(&self) -> &Arc<LookupPool> {
        self.own.get_or_init(|| {
            Arc::new(LookupPool {
                brokers: BrokerPool::of_source(
                    Arc::clone(&self.shared.brokers) as Arc<dyn BrokerSource>,
                    Choice::Same,
                    self.introduction.connect.clone(),
                    ConnectionOptions {
                        authentication: self.introduction.authentication.clone(),
                        ..connection_options(&self.shared)
                    },
                    SPARE_FAILED_BROKERS,
                ),
                flights: Mutex::default(),
            })
        })
    }
}

/// Whether a broker ended the connection instead of answering.
pub(crate) fn is_broken_off(failure: &LookupFailure) -> bool {
    let closed = |error: &RequestError| matches!(error, RequestError::Closed(_));
    match failure {
        LookupFailure::Request { error, .. } => closed(error),
        _ => false,
    }
}

/// Whether brokers do not take the client, or us.
pub(crate) fn is_refused(failure: &LookupFailure) -> bool {
    matches!(failure, LookupFailure::Pool(pool) if PoolError::is_about_the_client(pool))
}

/// How long a broker that failed is left alone: long enough not to hammer it, short enough that a request that waits for the next
/// attempt is still answered within a second.
const SPARE_FAILED_BROKERS: BackoffPolicy = BackoffPolicy {
    initial: Duration::from_millis(100),
    max: Duration::from_millis(500),
    jitter: 0.2,
    deadline: None,
};
/// Kinds of clients that share connections. What a client says of itself decides about its kind, so strangers could make many.
const SHARED_MAX: usize = 1024;
/// Requests under way on a shared connection; further ones wait for a place.
const SHARED_IN_FLIGHT_MAX: usize = 10_000;
/// How long a shared pool waits for its next client.
const UNUSED_MAX: Duration = Duration::from_secs(60);
/// A request that has been under way for longer is not joined: a client must not learn what was true before it asked, beyond what
/// brokers' caches do to it anyway.
const JOIN_WITHIN: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Semaphore;

    use super::*;
    use crate::client::Authentication;
    use crate::naming::BrokerAddress;
    use crate::protocol::proto::pulsar::CommandConnect;

    fn pool() -> Arc<LookupPool> {
        let address = BrokerAddress::from_host_port("127.0.0.1:1").expect("address");
        Arc::new(LookupPool {
            brokers: BrokerPool::new(
                address.into(),
                CommandConnect::default(),
                ConnectionOptions::default(),
                SPARE_FAILED_BROKERS,
            ),
            flights: Mutex::default(),
        })
    }

    /// Requests that are answered one by one, each answer naming its number.
    #[derive(Clone)]
    struct Asked {
        count: Arc<AtomicUsize>,
        answers: Arc<Semaphore>,
    }

    impl Asked {
        fn new() -> Self {
            Self {
                count: Arc::default(),
                answers: Arc::new(Semaphore::new(0)),
            }
        }

        fn ask(
            &self,
        ) -> impl Future<Output = Result<Frame, LookupFailure>> + Send + 'static + use<> {
            let number = self.count.fetch_add(1, Ordering::SeqCst);
            let answers = Arc::clone(&self.answers);
            async move {
                let answer = answers.acquire().await.map_err(|_| LookupFailure::NoUrl)?;
                answer.forget();
                Ok(Frame {
                    command: Bytes::from(number.to_string()),
                    payload: Bytes::new(),
                })
            }
        }
    }

    fn text(answer: Result<Frame, Arc<LookupFailure>>) -> String {
        match answer {
            Ok(frame) => String::from_utf8_lossy(&frame.command).into_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[tokio::test]
    async fn equal_requests_under_way_are_one_and_later_ones_another() {
        let (pool, tracker, asked) = (pool(), TaskTracker::new(), Asked::new());
        let key = Bytes::from_static(b"orders");
        let other = Bytes::from_static(b"other");
        let once = |key| pool.once(&tracker, key, || asked.ask());
        asked.answers.add_permits(2);
        let (a, b, c) = tokio::join!(once(&key), once(&key), once(&other));
        assert_eq!(
            (text(a), text(b), text(c)),
            ("0".into(), "0".into(), "1".into())
        );
        asked.answers.add_permits(1);
        assert_eq!(text(once(&key).await), "2");
        assert!(pool.flights.lock().is_empty());
        asked.answers.close();
        let (a, b) = tokio::join!(once(&key), once(&key));
        assert_eq!(
            (text(a), text(b)),
            (
                "the answer names no broker".into(),
                "the answer names no broker".into()
            )
        );
        tracker.close();
        tracker.wait().await;
    }

    #[tokio::test]
    async fn a_request_goes_on_when_the_first_of_its_clients_leaves_and_ends_with_the_last() {
        let (pool, tracker, asked) = (pool(), TaskTracker::new(), Asked::new());
        let key = Bytes::from_static(b"orders");
        let poll_once =
            |future: std::pin::Pin<&mut dyn Future<Output = Result<Frame, Arc<LookupFailure>>>>| {
                let waker = std::task::Waker::noop();
                let mut context = std::task::Context::from_waker(waker);
                future.poll(&mut context).is_pending()
            };
        let mut first = Box::pin(pool.once(&tracker, &key, || asked.ask()));
        assert!(poll_once(first.as_mut()));
        let mut second = Box::pin(pool.once(&tracker, &key, || asked.ask()));
        assert!(poll_once(second.as_mut()));
        drop(first);
        asked.answers.add_permits(1);
        assert_eq!(text(second.await), "0");
        assert_eq!(asked.count.load(Ordering::SeqCst), 1);

        let mut last = Box::pin(pool.once(&tracker, &key, || asked.ask()));
        assert!(poll_once(last.as_mut()));
        drop(last);
        tracker.close();
        tracker.wait().await;
        assert!(pool.flights.lock().is_empty(), "nobody waits for it");
    }

    fn introduction(version: usize, credential_of_client: bool) -> LookupIntroduction {
        LookupIntroduction {
            connect: CommandConnect {
                client_version: format!("client {version}"),
                ..CommandConnect::default()
            },
            authentication: Authentication::none(),
            credential_of_client,
        }
    }

    fn gateway() -> Arc<Shared> {
        let address = BrokerAddress::from_host_port("127.0.0.1:1").expect("address");
        let settings = crate::config::GatewaySettings {
            bind_address: std::net::Ipv4Addr::LOCALHOST.into(),
            service_port: Some(0),
            ..crate::config::GatewaySettings::for_broker(address.into())
        };
        let registry = crate::telemetry::MetricRegistry::new("test");
        let (_, phases) = crate::http::phases();
        let gateway = crate::gateway::Gateway::bind(settings, &registry, phases);
        Arc::clone(&gateway.expect("a free port").shared)
    }

    #[tokio::test(start_paused = true)]
    async fn shared_pools_are_closed_a_while_after_their_last_client() {
        let shared = gateway();
        let pools = &shared.pools;
        let one = pools.pool_for(&shared, introduction(1, false));
        let same = pools.pool_for(&shared, introduction(1, false));
        let other = pools.pool_for(&shared, introduction(2, false));
        let own = pools.pool_for(&shared, introduction(1, true));
        assert!(one.current().1 && Arc::ptr_eq(one.current().0, same.current().0));
        assert!(!Arc::ptr_eq(one.current().0, other.current().0));
        assert!(!own.current().1);
        assert_eq!(pools.pools.lock().len(), 2);
        drop((one, other));
        pools.close_unused();
        tokio::time::advance(UNUSED_MAX).await;
        pools.close_unused();
        assert_eq!(pools.pools.lock().len(), 1, "one still has a client");
        drop(same);
        pools.close_unused();
        tokio::time::advance(UNUSED_MAX - Duration::from_millis(1)).await;
        pools.close_unused();
        let back = pools.pool_for(&shared, introduction(1, false));
        tokio::time::advance(UNUSED_MAX).await;
        pools.close_unused();
        drop(back);
        assert_eq!(pools.pools.lock().len(), 1, "it was used again");
        pools.close_unused();
        tokio::time::advance(UNUSED_MAX).await;
        pools.close_unused();
        assert!(pools.pools.lock().is_empty());
    }

    #[tokio::test]
    async fn clients_of_too_many_kinds_have_connections_of_their_own() {
        let shared = gateway();
        let pool_for = |version| shared.pools.pool_for(&shared, introduction(version, false));
        assert!((0..SHARED_MAX).all(|version| pool_for(version).current().1));
        assert!(!pool_for(SHARED_MAX).current().1);
        assert!(pool_for(0).current().1, "these are still shared");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_old_is_not_joined() {
        let (pool, tracker, asked) = (pool(), TaskTracker::new(), Asked::new());
        let key = Bytes::from_static(b"orders");
        let late = async {
            tokio::time::advance(JOIN_WITHIN + Duration::from_millis(1)).await;
            let mut late = std::pin::pin!(pool.once(&tracker, &key, || asked.ask()));
            assert!(
                tokio::time::timeout(Duration::from_millis(1), &mut late)
                    .await
                    .is_err()
            );
            asked.answers.add_permits(2);
            late.await
        };
        let (early, late) = tokio::join!(pool.once(&tracker, &key, || asked.ask()), late);
        assert_eq!((text(early), text(late)), ("0".into(), "1".into()));
        tokio::task::yield_now().await;
        assert!(pool.flights.lock().is_empty());
    }
}
