//! A request body that can be sent again, within bounds.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::Sleep;

use crate::http::{Body, BodyError, BodyTimedOut};

/// Bytes that all requests together keep of their bodies.
#[derive(Debug)]
pub(super) struct ReplayMemory {
    used: AtomicUsize,
    max: usize,
}

impl ReplayMemory {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            used: AtomicUsize::new(0),
            max,
        })
    }

    fn take(&self, bytes: usize) -> bool {
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|used| *used <= self.max)
            })
            .is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The body of a client's request. It is read as it is sent on, and what was read is kept as long as it fits, so that another
/// server can get it from the beginning. Cheap to clone.
#[derive(Clone)]
pub(super) struct Upload {
    state: Arc<Mutex<State>>,
}

struct State {
    source: Body,
    size: SizeHint,
    kept: Vec<u8>,
    /// `kept` holds all that was read.
    replayable: bool,
    /// Nothing will be sent again.
    settled: bool,
    /// Bytes of `kept` that the last attempt gave out.
    position: usize,
    keep_max: usize,
    memory: Arc<ReplayMemory>,
    read: bool,
    ended: bool,
    failure: Option<UploadFailure>,
    /// The attempt that may read; those before it get nothing more.
    attempt: u64,
    waker: Option<Waker>,
}

/// Why the client's body did not come to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum UploadFailure {
    #[error("the client sent nothing more of its body in time")]
    Silent,
    #[error("the client ended the connection within its body")]
    Cut,
}

impl Upload {
    /// Keeps at most `keep_max` bytes, and only of a body that fits as a whole.
    pub(super) fn new(source: Body, keep_max: usize, memory: Arc<ReplayMemory>) -> Self {
        let size = source.size_hint();
        let fits = usize::try_from(size.lower()).is_ok_and(|lower| lower <= keep_max);
        Self {
            state: Arc::new(Mutex::new(State {
                ended: source.is_end_stream(),
                source,
                size,
                kept: Vec::new(),
                replayable: fits,
                settled: false,
                position: 0,
                keep_max,
                memory,
                read: false,
                failure: None,
                attempt: 0,
                waker: None,
            })),
        }
    }

    /// Whether there is no body.
    pub(super) fn is_empty(&self) -> bool {
        let state = self.state.lock();
        state.ended && !state.read
    }

    /// The size, where the client said it.
    pub(super) fn exact_size(&self) -> Option<u64> {
        self.state.lock().size.exact()
    }

    pub(super) fn failure(&self) -> Option<UploadFailure> {
        self.state.lock().failure
    }

    /// The body from its beginning, for one more server; what an earlier one still reads fails. `None` when the beginning is
    /// gone.
    pub(super) fn attempt(&self, gate: Option<Gate>) -> Option<Body> {
        let (attempt, waker) = {
            let mut state = self.state.lock();
            if state.settled || (state.read && !state.replayable) {
                return None;
            }
            state.attempt += 1;
            state.position = 0;
            (state.attempt, state.waker.take())
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Some(Body::new(Attempt {
            upload: self.clone(),
            attempt,
            gate,
        }))
    }

    /// The answer is there: nothing has to be sent again. Who answered may still read what it has not.
    pub(super) fn settle(&self) {
        let mut state = self.state.lock();
        state.settled = true;
        state.forget_given_out();
    }
}

impl State {
    fn forget(&mut self) {
        self.memory.give_back(self.kept.len());
        self.kept = Vec::new();
    }

    /// Lets go of what will not be sent again and has gone out.
    fn forget_given_out(&mut self) {
        if self.settled && self.position >= self.kept.len() {
            self.forget();
            self.replayable = false;
        }
    }

    /// Keeps bytes that go out now, behind all that is kept.
    fn keep(&mut self, data: &[u8]) {
        self.forget_given_out();
        if !self.replayable {
            return;
        }
        let fits = self.kept.len() + data.len() <= self.keep_max && self.memory.take(data.len());
        if fits {
            self.kept.extend_from_slice(data);
            self.position = self.kept.len();
        } else {
            self.forget();
            self.replayable = false;
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.forget();
    }
}

/// One sending of an [`Upload`].
struct Attempt {
    upload: Upload,
    attempt: u64,
    gate: Option<Gate>,
}

/// Another server gets the body now.
#[derive(Debug, thiserror::Error)]
#[error("the body goes to another server")]
struct Superseded;

impl HttpBody for Attempt {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        let mut state = this.upload.state.lock();
        if state.attempt != this.attempt {
            return Poll::Ready(Some(Err(Superseded.into())));
        }
        // A later attempt wakes this one, so that its connection ends.
        state.waker = Some(cx.waker().clone());
        if let Some(gate) = &mut this.gate {
            if gate.poll_open(cx).is_pending() {
                return Poll::Pending;
            }
            this.gate = None;
        }
        if state.position < state.kept.len() {
            let piece = state
                .kept
                .get(state.position..)
                .and_then(|rest| rest.chunks(PIECE).next())
                .map(Bytes::copy_from_slice)
                .unwrap_or_default();
            state.position += piece.len();
            state.forget_given_out();
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        if state.ended {
            return Poll::Ready(None);
        }
        loop {
            let frame = match Pin::new(&mut state.source).poll_frame(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(frame) => frame,
            };
            match frame {
                None => {
                    state.ended = true;
                    return Poll::Ready(None);
                }
                Some(Err(error)) => {
                    state.failure = Some(if error.is::<BodyTimedOut>() {
                        UploadFailure::Silent
                    } else {
                        UploadFailure::Cut
                    });
                    return Poll::Ready(Some(Err(error)));
                }
                Some(Ok(frame)) => {
                    // Trailers end here: they are about a coding that ends here, too.
                    let Ok(data) = frame.into_data() else {
                        continue;
                    };
                    state.read = true;
                    // Who sends a body of known length on does not ask for its end.
                    state.ended = state.source.is_end_stream();
                    state.keep(&data);
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let state = self.upload.state.lock();
        // A body that was kept to its end is still to be given out.
        state.attempt == self.attempt && state.ended && state.position >= state.kept.len()
    }

    fn size_hint(&self) -> SizeHint {
        self.upload.state.lock().size
    }
}

/// Holds a body back until its server wants it (RFC 9110, 10.1.1), or does not say so in time.
pub(super) struct Gate {
    shared: Arc<Mutex<GateState>>,
    patience: Pin<Box<Sleep>>,
}

#[derive(Default)]
struct GateState {
    open: bool,
    waker: Option<Waker>,
}

/// Opens a [`Gate`].
#[derive(Clone)]
pub(super) struct GateKey(Arc<Mutex<GateState>>);

impl Gate {
    /// A gate that opens by itself after `patience`.
    pub(super) fn new(patience: Duration) -> (Self, GateKey) {
        let shared = Arc::<Mutex<GateState>>::default();
        let gate = Self {
            shared: Arc::clone(&shared),
            patience: Box::pin(tokio::time::sleep(patience)),
        };
        (gate, GateKey(shared))
    }

    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.shared.lock();
        if state.open || self.patience.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl GateKey {
    /// Lets the body go.
    pub(super) fn open(&self) {
        let waker = {
            let mut state = self.0.lock();
            state.open = true;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Bytes of a kept body that are given out at a time.
const PIECE: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use tokio::sync::mpsc;

    use super::*;

    struct Channel(mpsc::UnboundedReceiver<Bytes>);

    impl HttpBody for Channel {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            self.0
                .poll_recv(cx)
                .map(|data| data.map(|data| Ok(Frame::data(data))))
        }
    }

    fn upload(
        keep_max: usize,
        memory: usize,
    ) -> (mpsc::UnboundedSender<Bytes>, Upload, Arc<ReplayMemory>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let memory = ReplayMemory::new(memory);
        let upload = Upload::new(Body::new(Channel(receiver)), keep_max, Arc::clone(&memory));
        (sender, upload, memory)
    }

    async fn next(body: &mut Body) -> Result<Bytes, String> {
        match body.frame().await {
            None => Ok(Bytes::new()),
            Some(Ok(frame)) => Ok(frame.into_data().expect("data")),
            Some(Err(error)) => Err(error.to_string()),
        }
    }

    async fn rest(mut body: Body) -> String {
        let mut all = Vec::new();
        loop {
            let piece = next(&mut body).await.expect("no error");
            if piece.is_empty() {
                return String::from_utf8(all).expect("text");
            }
            all.extend_from_slice(&piece);
        }
    }

    #[tokio::test]
    async fn a_body_of_unknown_length_can_be_sent_three_times() {
        let (sender, upload, memory) = upload(10, 100);
        sender.send("abc".into()).expect("open");
        let mut first = upload.attempt(None).expect("nothing read");
        assert_eq!(next(&mut first).await.expect("data"), "abc");
        sender.send("def".into()).expect("open");
        drop(sender);
        for _ in 0..3 {
            assert_eq!(rest(upload.attempt(None).expect("kept")).await, "abcdef");
        }
        assert_eq!(memory.used.load(Ordering::Relaxed), 6);
        upload.settle();
        assert_eq!(memory.used.load(Ordering::Relaxed), 0);
        assert!(upload.attempt(None).is_none());
    }

    #[tokio::test]
    async fn who_answers_early_still_gets_all_of_the_body() {
        let (sender, upload, memory) = upload(10, 100);
        sender.send("abc".into()).expect("open");
        let mut first = upload.attempt(None).expect("nothing read");
        assert_eq!(next(&mut first).await.expect("data"), "abc");
        let second = upload.attempt(None).expect("kept");
        upload.settle();
        sender.send("def".into()).expect("open");
        drop(sender);
        assert_eq!(rest(second).await, "abcdef");
        assert_eq!(memory.used.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn no_more_is_kept_than_allowed() {
        let (sender, upload, memory) = upload(5, 100);
        sender.send("abc".into()).expect("open");
        sender.send("def".into()).expect("open");
        drop(sender);
        assert_eq!(
            rest(upload.attempt(None).expect("nothing read")).await,
            "abcdef"
        );
        assert!(upload.attempt(None).is_none());
        assert_eq!(memory.used.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn all_requests_together_keep_no_more_than_allowed() {
        let (sender, upload, memory) = upload(100, 8);
        assert!(memory.take(4));
        sender.send("abc".into()).expect("open");
        sender.send("def".into()).expect("open");
        drop(sender);
        assert_eq!(
            rest(upload.attempt(None).expect("nothing read")).await,
            "abcdef"
        );
        assert!(upload.attempt(None).is_none());
        assert_eq!(memory.used.load(Ordering::Relaxed), 4);
    }

    #[tokio::test]
    async fn an_earlier_attempt_fails_when_a_later_one_begins() {
        let (sender, upload, _) = upload(10, 100);
        let mut first = upload.attempt(None).expect("nothing read");
        let waiting = async { next(&mut first).await };
        let later = async {
            tokio::task::yield_now().await;
            sender.send("abc".into()).expect("open");
            drop(sender);
            rest(upload.attempt(None).expect("nothing read")).await
        };
        let (first, later) = tokio::join!(waiting, later);
        // The first may have got the bytes before it was superseded; it gets no end.
        match first {
            Ok(data) => assert_eq!(data, "abc"),
            Err(error) => assert_eq!(error, Superseded.to_string()),
        }
        assert_eq!(later, "abc");
    }

    #[tokio::test]
    async fn a_body_that_is_too_large_from_the_start_is_not_kept() {
        let memory = ReplayMemory::new(100);
        let upload = Upload::new(Body::full("abcdef"), 5, Arc::clone(&memory));
        assert_eq!(upload.exact_size(), Some(6));
        let mut first = upload.attempt(None).expect("nothing read");
        assert_eq!(next(&mut first).await.expect("data"), "abcdef");
        assert_eq!(memory.used.load(Ordering::Relaxed), 0);
        assert!(upload.attempt(None).is_none());
    }

    #[tokio::test]
    async fn a_gate_holds_the_body_back_until_it_is_opened() {
        let memory = ReplayMemory::new(100);
        let upload = Upload::new(Body::full("abc"), 10, memory);
        let (gate, key) = Gate::new(Duration::from_secs(3600));
        let body = upload.attempt(Some(gate)).expect("nothing read");
        let opened = async {
            tokio::task::yield_now().await;
            assert!(!upload.state.lock().read);
            key.open();
        };
        let (text, ()) = tokio::join!(rest(body), opened);
        assert_eq!(text, "abc");
    }

    /// Gives one piece and fails.
    struct Cut(bool);

    impl HttpBody for Cut {
        type Data = Bytes;
        type Error = &'static str;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            let first = std::mem::take(&mut self.0);
            let frame = first.then(|| Frame::data(Bytes::from("a")));
            Poll::Ready(Some(frame.ok_or("cut")))
        }
    }

    #[tokio::test]
    async fn a_cut_body_is_told() {
        let memory = ReplayMemory::new(100);
        let upload = Upload::new(Body::new(Cut(true)), 10, memory);
        let mut body = upload.attempt(None).expect("nothing read");
        assert_eq!(next(&mut body).await.expect("data"), "a");
        assert!(next(&mut body).await.is_err());
        assert_eq!(upload.failure(), Some(UploadFailure::Cut));
    }
}
