//! Something made of files that may be replaced while we run.
//!
//! New users get what is made of the files as they are; when their content is of no use, as in the middle of a replacement,
//! they go on with what was made before, and that is logged once. Files are read where nobody else is kept waiting: a disk that hangs
//! holds up one look and one of those that ask, for a moment, and no thread that serves connections.

use std::{fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    task::JoinHandle,
    time::{Instant, timeout},
};
use tracing::{info, warn};

use crate::config::CredentialError;

/// What files hold, and what is made of it.
pub trait Files: Send + Sync + 'static {
    /// What they hold.
    type Content: PartialEq + Send;
    /// What is made of that.
    type Made: Send + Sync;
    /// Why nothing can be made of it.
    type Error: fmt::Display;
    /// What the files are, in a log line.
    const WHAT: &'static str;

    /// Reads them. May block.
    ///
    /// # Errors
    /// When one cannot be read.
    fn read(&self) -> Result<Self::Content, CredentialError>;

    /// Makes it.
    ///
    /// # Errors
    /// When the content is of no use.
    fn make(&self, content: &Self::Content) -> Result<Self::Made, Self::Error>;
}

/// What is made of files, kept up to date by those who ask for it.
pub struct Reloading<F: Files>(Arc<Shared<F>>);

struct Shared<F: Files> {
    files: F,
    /// From one look at the files to the next.
    period: Duration,
    current: Mutex<Current<F>>,
}

struct Current<F: Files> {
    content: F::Content,
    made: Arc<F::Made>,
    /// Content that was of no use is complained about once.
    refused: Option<Result<F::Content, CredentialError>>,
    /// When the files are looked at again.
    next_look: Instant,
    /// When the look that is under way began. There is never more than one.
    looking_since: Option<Instant>,
}

impl<F: Files> Reloading<F> {
    /// Reads the files, here and now; later they are looked at when somebody asks and `period` has passed since the last look.
    ///
    /// # Errors
    /// When they cannot be read or nothing can be made of them.
    pub fn open(files: F, period: Duration) -> Result<Self, F::Error>
    where
        F::Error: From<CredentialError>,
    {
        let content = files.read()?;
        let made = Arc::new(files.make(&content)?);
        Ok(Self(Arc::new(Shared {
            files,
            period,
            current: Mutex::new(Current {
                content,
                made,
                refused: None,
                next_look: next_look(period),
                looking_since: None,
            }),
        })))
    }

    /// What the files are.
    pub fn files(&self) -> &F {
        &self.0.files
    }

    /// What is made of the files as they were at the last look, which is now if it is time for one. Who comes while one is under way
    /// does not wait for it, and who began it does so for [`LOOK_PATIENCE`]: both go on with what there is. Cancel-safe: a look that has
    /// begun goes on.
    pub async fn current(&self) -> Arc<F::Made> {
        if let Some(look) = self.begin_look()
            && timeout(LOOK_PATIENCE, look).await.is_err()
        {
            warn!(
                "{} could not be read within {} s; going on with what they held before",
                F::WHAT,
                LOOK_PATIENCE.as_secs()
            );
        }
        self.made()
    }

    /// As [`current`](Self::current), for who cannot wait: what a look finds that is due now is for those who ask later.
    pub fn latest(&self) -> Arc<F::Made> {
        drop(self.begin_look());
        self.made()
    }

    /// Whether the files were of use at the last look. One that takes longer than [`LOOK_PATIENCE`] has not found them so.
    pub fn is_up_to_date(&self) -> bool {
        let current = self.0.current.lock();
        let waits_long = |since: Instant| since.elapsed() >= LOOK_PATIENCE;
        current.refused.is_none() && !current.looking_since.is_some_and(waits_long)
    }

    fn made(&self) -> Arc<F::Made> {
        Arc::clone(&self.0.current.lock().made)
    }

    /// Begins a look, if it is time for one and none is under way.
    fn begin_look(&self) -> Option<JoinHandle<()>> {
        {
            let mut current = self.0.current.lock();
            let now = Instant::now();
            if current.looking_since.is_some() || now < current.next_look {
                return None;
            }
            current.looking_since = Some(now);
            current.next_look = next_look(self.0.period);
        }
        let look = Look(Arc::clone(&self.0));
        match Handle::try_current() {
            Ok(runtime) => Some(runtime.spawn_blocking(move || look.run())),
            // No connection is served by a thread of no runtime.
            Err(_) => {
                look.run();
                None
            }
        }
    }
}

/// The look that is under way, until it is dropped, by whatever end.
struct Look<F: Files>(Arc<Shared<F>>);

impl<F: Files> Drop for Look<F> {
    fn drop(&mut self) {
        self.0.current.lock().looking_since = None;
    }
}

impl<F: Files> Look<F> {
    fn run(self) {
        let Shared { files, current, .. } = &*self.0;
        // Others go on with what there is meanwhile, while the files are read and while something is made of them.
        let found = files.read();
        {
            let mut current = current.lock();
            if matches!(&found, Ok(content) if *content == current.content) {
                current.refused = None;
                return;
            }
            if current.refused.as_ref() == Some(&found) {
                return;
            }
        }
        let made = match &found {
            Ok(content) => files.make(content).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let mut current = current.lock();
        match (made, found) {
            (Ok(made), Ok(content)) => {
                info!("{} changed; new connections use the new ones", F::WHAT);
                current.content = content;
                current.made = Arc::new(made);
                current.refused = None;
            }
            (Err(error), found) => {
                warn!(
                    "{} changed and cannot be used; going on with what they held before: {error}",
                    F::WHAT
                );
                current.refused = Some(found);
            }
            // Nothing is made of what could not be read.
            (Ok(_), Err(_)) => {}
        }
    }
}

fn next_look(period: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(period).unwrap_or(now)
}

/// How long a user waits for a look at the files before it goes on with what there is. More than a healthy disk ever takes, and little
/// of the time that a handshake has.
pub const LOOK_PATIENCE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Files that hold a text, of which a number is made.
    #[derive(Default)]
    struct Number {
        text: Mutex<String>,
        reads: AtomicUsize,
    }

    #[derive(Debug, thiserror::Error)]
    enum NoNumber {
        #[error(transparent)]
        Read(#[from] CredentialError),
        #[error(transparent)]
        Parse(#[from] std::num::ParseIntError),
    }

    impl Files for Number {
        type Content = String;
        type Made = u32;
        type Error = NoNumber;
        const WHAT: &'static str = "the number";

        fn read(&self) -> Result<String, CredentialError> {
            self.reads.fetch_add(1, Ordering::Relaxed);
            match self.text.lock().as_str() {
                "" => Err(CredentialError::Nothing("the number".to_owned())),
                text => Ok(text.to_owned()),
            }
        }

        fn make(&self, content: &String) -> Result<u32, NoNumber> {
            Ok(content.parse()?)
        }
    }

    fn reloading(period: Duration) -> Reloading<Number> {
        let number = Number::default();
        *number.text.lock() = "1".to_owned();
        Reloading::open(number, period).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn files_are_looked_at_once_per_period() {
        let reloading = reloading(Duration::from_secs(300));
        *reloading.files().text.lock() = "2".to_owned();
        tokio::time::advance(Duration::from_secs(299)).await;
        assert_eq!(*reloading.current().await, 1);
        assert_eq!(reloading.files().reads.load(Ordering::Relaxed), 1);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(*reloading.current().await, 2);
        assert_eq!(*reloading.current().await, 2);
        assert_eq!(reloading.files().reads.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn what_is_of_no_use_leaves_the_old_one_until_it_is() {
        let reloading = reloading(Duration::ZERO);
        let set = |text: &str| *reloading.files().text.lock() = text.to_owned();
        for useless in ["x", "", "x"] {
            set(useless);
            assert_eq!(*reloading.current().await, 1, "{useless}");
            assert!(!reloading.is_up_to_date());
        }
        set("2");
        assert_eq!(*reloading.current().await, 2);
        assert!(reloading.is_up_to_date());
        // Going back is no change, and no complaint stays.
        set("x");
        assert_eq!(*reloading.current().await, 2);
        set("2");
        assert_eq!(*reloading.current().await, 2);
        assert!(reloading.is_up_to_date());
    }

    /// Files that are read, or of which something is made, only when the test says so.
    struct Slow {
        text: Mutex<&'static str>,
        /// Which of the two takes long.
        reading: bool,
        began: tokio::sync::mpsc::UnboundedSender<()>,
        go_on: Mutex<std::sync::mpsc::Receiver<()>>,
    }

    impl Slow {
        fn wait(&self, content: &str) {
            if content != "first" {
                self.began.send(()).unwrap();
                self.go_on.lock().recv().unwrap();
            }
        }
    }

    impl Files for Slow {
        type Content = &'static str;
        type Made = &'static str;
        type Error = CredentialError;
        const WHAT: &'static str = "the slow one";

        fn read(&self) -> Result<&'static str, CredentialError> {
            let text = *self.text.lock();
            if self.reading {
                self.wait(text);
            }
            Ok(text)
        }

        fn make(&self, content: &&'static str) -> Result<&'static str, CredentialError> {
            if !self.reading {
                self.wait(content);
            }
            Ok(*content)
        }
    }

    /// Time stands still while a thread of these tests' looks is at work, unless it is moved.
    #[tokio::test(start_paused = true)]
    async fn a_look_that_hangs_keeps_nobody_waiting_and_is_the_only_one() {
        for reading in [true, false] {
            let (began, mut begun) = tokio::sync::mpsc::unbounded_channel();
            let (go_on, gone_on) = std::sync::mpsc::channel();
            let slow = Slow {
                text: Mutex::new("first"),
                reading,
                began,
                go_on: Mutex::new(gone_on),
            };
            let reloading = Arc::new(Reloading::open(slow, Duration::ZERO).unwrap());
            *reloading.files().text.lock() = "second";
            let looking = tokio_util::task::TaskTracker::new().spawn({
                let reloading = Arc::clone(&reloading);
                async move { *reloading.current().await }
            });
            begun.recv().await.unwrap();
            for _ in 0..100 {
                // Ready when it is asked for the first time.
                let others = timeout(Duration::ZERO, reloading.current()).await;
                assert_eq!(*others.unwrap(), "first");
                assert_eq!(*reloading.latest(), "first");
            }
            assert!(reloading.is_up_to_date(), "it may still come in time");
            tokio::time::advance(LOOK_PATIENCE).await;
            assert_eq!(looking.await.unwrap(), "first");
            assert!(!reloading.is_up_to_date());
            assert!(begun.try_recv().is_err(), "one look at a time");
            // What it finds at last is taken all the same.
            go_on.send(()).unwrap();
            while reloading.0.current.lock().looking_since.is_some() {
                tokio::task::yield_now().await;
            }
            assert_eq!(*reloading.made(), "second");
            assert!(reloading.is_up_to_date());
            *reloading.files().text.lock() = "first";
            assert_eq!(*reloading.current().await, "first");
        }
    }

    #[tokio::test]
    async fn who_cannot_wait_gets_what_a_look_of_before_has_found() {
        let reloading = reloading(Duration::ZERO);
        *reloading.files().text.lock() = "2".to_owned();
        while *reloading.latest() != 2 {
            tokio::task::yield_now().await;
        }
    }

    #[test]
    fn without_a_runtime_the_files_are_looked_at_in_place() {
        let reloading = reloading(Duration::ZERO);
        *reloading.files().text.lock() = "2".to_owned();
        assert_eq!(*reloading.latest(), 2);
    }

    /// Files of which making something panics.
    struct Panicking(Mutex<u32>);

    impl Files for Panicking {
        type Content = u32;
        type Made = u32;
        type Error = CredentialError;
        const WHAT: &'static str = "the panicking one";

        fn read(&self) -> Result<u32, CredentialError> {
            Ok(*self.0.lock())
        }

        fn make(&self, content: &u32) -> Result<u32, CredentialError> {
            assert_ne!(*content, 2, "a test wants this panic");
            Ok(*content)
        }
    }

    #[tokio::test]
    async fn a_look_that_panics_is_not_the_last() {
        let reloading = Reloading::open(Panicking(Mutex::new(1)), Duration::ZERO).unwrap();
        *reloading.files().0.lock() = 2;
        assert_eq!(*reloading.current().await, 1);
        *reloading.files().0.lock() = 3;
        assert_eq!(*reloading.current().await, 3);
    }

    #[test]
    fn what_is_of_no_use_at_first_is_an_error() {
        let number = Number::default();
        let opened = Reloading::open(number, Duration::ZERO);
        assert!(matches!(opened, Err(NoNumber::Read(_))));
    }
}
