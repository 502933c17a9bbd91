//! Bodies of requests and answers: whole or streamed.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::Sleep;

use super::idle::IdleControl;

/// Why a body ended before its end.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// A body, whole or streamed; what it streams is asked for only when the other side takes it.
pub struct Body(UnsyncBoxBody<Bytes, BodyError>);

impl Body {
    /// No body.
    #[must_use]
    pub fn empty() -> Self {
        Self::new(Empty::new())
    }

    /// A body that is there already.
    #[must_use]
    pub fn full(bytes: impl Into<Bytes>) -> Self {
        Self::new(Full::new(bytes.into()))
    }

    /// A body that comes from elsewhere.
    #[must_use]
    pub fn new<B>(body: B) -> Self
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BodyError>,
    {
        Self(body.map_err(Into::into).boxed_unsync())
    }

    /// Reads all of it, but no more than `max` bytes. Takes as long as the other side does; cancel-safe in that the rest is
    /// not read.
    ///
    /// # Errors
    /// [`ReadBodyError`].
    pub async fn read(mut self, max: usize) -> Result<Bytes, ReadBodyError> {
        let mut bytes = Vec::new();
        while let Some(frame) = self.frame().await {
            let frame = frame.map_err(ReadBodyError::Failed)?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            if bytes.len().saturating_add(data.len()) > max {
                return Err(ReadBodyError::TooLarge(max));
            }
            bytes.extend_from_slice(&data);
        }
        Ok(bytes.into())
    }
}

/// Why a body was not read.
#[derive(Debug, thiserror::Error)]
pub enum ReadBodyError {
    /// It has more bytes than are taken.
    #[error("it has more than {0} bytes")]
    TooLarge(usize),
    /// It ended before its end.
    #[error("{0}")]
    Failed(BodyError),
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body").finish_non_exhaustive()
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(&mut self.0).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

/// The sender of a body was silent for too long.
#[derive(Debug, thiserror::Error)]
#[error("nothing of the body came for {0:?}")]
pub struct BodyTimedOut(pub Duration);

/// A request body that fails with [`BodyTimedOut`] when somebody waits for it in vain.
pub(super) struct ImpatientBody<B> {
    body: B,
    timeout: Duration,
    /// Runs while somebody waits.
    patience: Option<Pin<Box<Sleep>>>,
}

impl<B> ImpatientBody<B> {
    pub(super) fn new(body: B, timeout: Duration) -> Self {
        Self {
            body,
            timeout,
            patience: None,
        }
    }
}

impl<B> HttpBody for ImpatientBody<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<BodyError>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            self.patience = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let timeout = self.timeout;
        let patience = self
            .patience
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        match patience.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Some(Err(BodyTimedOut(timeout).into()))),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of an answer: the silence of its connection is to be expected while the body itself has nothing.
pub(super) struct AnswerBody {
    body: Body,
    control: IdleControl,
}

impl AnswerBody {
    pub(super) fn new(body: Body, control: IdleControl) -> Self {
        Self { body, control }
    }
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        match polled {
            Poll::Ready(_) => self.control.resume(),
            Poll::Pending => self.control.pause(),
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for AnswerBody {
    fn drop(&mut self) {
        self.control.resume();
    }
}
