//! Something made of files that may be replaced while we run.
//!
//! New users get what is made of the files as they are; when their content is of no use, as in the middle of a replacement,
//! they go on with what was made before, and that is logged once.

use std::{fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::config::CredentialError;

/// What files hold, and what is made of it.
pub trait Files: Send + Sync {
    /// What they hold.
    type Content: PartialEq + Send;
    /// What is made of that.
    type Made: Send + Sync;
    /// Why nothing can be made of it.
    type Error: fmt::Display;
    /// What the files are, in a log line.
    const WHAT: &'static str;

    /// Reads them. They are small and local: this may block for a moment.
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
pub struct Reloading<F: Files> {
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
    /// Looks that have begun.
    looks: u64,
    /// The look that `made` or `refused` are of.
    taken: u64,
}

impl<F: Files> Reloading<F> {
    /// Reads the files; later they are looked at when somebody asks and `period` has passed since the last look.
    ///
    /// # Errors
    /// When they cannot be read or nothing can be made of them.
    pub fn open(files: F, period: Duration) -> Result<Self, F::Error>
    where
        F::Error: From<CredentialError>,
    {
        let content = files.read()?;
        let made = Arc::new(files.make(&content)?);
        Ok(Self {
            files,
            period,
            current: Mutex::new(Current {
                content,
                made,
                refused: None,
                next_look: next_look(period),
                looks: 0,
                taken: 0,
            }),
        })
    }

    /// What the files are.
    pub fn files(&self) -> &F {
        &self.files
    }

    /// What is made of the files as they were at the last look, which is now if it is time for one.
    pub fn current(&self) -> Arc<F::Made> {
        let look = {
            let mut current = self.current.lock();
            if Instant::now() < current.next_look {
                return Arc::clone(&current.made);
            }
            current.next_look = next_look(self.period);
            current.looks += 1;
            current.looks
        };
        // Others go on with what there is meanwhile, while the files are read and while something is made of them.
        let found = self.files.read();
        {
            let mut current = self.current.lock();
            let is_known = matches!(&found, Ok(content) if *content == current.content);
            if is_known && look >= current.taken {
                current.refused = None;
                // What an earlier look found is older than this.
                current.taken = look;
            }
            if is_known || current.refused.as_ref() == Some(&found) {
                return Arc::clone(&current.made);
            }
        }
        let made = match &found {
            Ok(content) => self.files.make(content).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let mut current = self.current.lock();
        // One that looked later has been quicker.
        if look < current.taken {
            return Arc::clone(&current.made);
        }
        current.taken = look;
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
        Arc::clone(&current.made)
    }

    /// Whether the files were of use at the last look.
    pub fn is_up_to_date(&self) -> bool {
        self.current.lock().refused.is_none()
    }
}

fn next_look(period: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(period).unwrap_or(now)
}

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
        assert_eq!(*reloading.current(), 1);
        assert_eq!(reloading.files().reads.load(Ordering::Relaxed), 1);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(*reloading.current(), 2);
        assert_eq!(*reloading.current(), 2);
        assert_eq!(reloading.files().reads.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn what_is_of_no_use_leaves_the_old_one_until_it_is() {
        let reloading = reloading(Duration::ZERO);
        let set = |text: &str| *reloading.files().text.lock() = text.to_owned();
        for useless in ["x", "", "x"] {
            set(useless);
            assert_eq!(*reloading.current(), 1, "{useless}");
            assert!(!reloading.is_up_to_date());
        }
        set("2");
        assert_eq!(*reloading.current(), 2);
        assert!(reloading.is_up_to_date());
        // Going back is no change, and no complaint stays.
        set("x");
        assert_eq!(*reloading.current(), 2);
        set("2");
        assert_eq!(*reloading.current(), 2);
        assert!(reloading.is_up_to_date());
    }

    /// Files of which something is made only when the test says so.
    struct Slow {
        text: Mutex<&'static str>,
        making: std::sync::mpsc::Sender<()>,
        made: Mutex<std::sync::mpsc::Receiver<()>>,
    }

    impl Files for Slow {
        type Content = &'static str;
        type Made = &'static str;
        type Error = CredentialError;
        const WHAT: &'static str = "the slow one";

        fn read(&self) -> Result<&'static str, CredentialError> {
            Ok(*self.text.lock())
        }

        fn make(&self, content: &&'static str) -> Result<&'static str, CredentialError> {
            if *content != "first" {
                self.making.send(()).unwrap();
                self.made.lock().recv().unwrap();
            }
            Ok(*content)
        }
    }

    #[test]
    fn nobody_waits_while_something_is_made_of_new_files() {
        let (making, begun) = std::sync::mpsc::channel();
        let (done, made) = std::sync::mpsc::channel();
        let slow = Slow {
            text: Mutex::new("first"),
            making,
            made: Mutex::new(made),
        };
        let reloading = Arc::new(Reloading::open(slow, Duration::ZERO).unwrap());
        *reloading.files().text.lock() = "second";
        let maker = std::thread::spawn({
            let reloading = Arc::clone(&reloading);
            move || *reloading.current()
        });
        begun.recv().unwrap();
        assert!(
            reloading.current.try_lock().is_some(),
            "others would wait for it"
        );
        done.send(()).unwrap();
        assert_eq!(maker.join().unwrap(), "second");
    }

    #[test]
    fn what_is_of_no_use_at_first_is_an_error() {
        let number = Number::default();
        let opened = Reloading::open(number, Duration::ZERO);
        assert!(matches!(opened, Err(NoNumber::Read(_))));
    }
}
