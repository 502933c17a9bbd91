//! Room for answers that may be megabytes: topics of a namespace and schemas.
//!
//! One connection has few of them at a time, but there are many connections, and a client may ask and not read. So three things are
//! bounded for all of them together: how many are asked of brokers, which takes as long as brokers do; how many bytes of answers
//! wait for clients, which may take long; and how many answers wait, for a moment, to be among the latter. A client that does not read
//! cannot keep others from asking; where it and its like have taken all the room, large answers give way to an error, and small ones pass.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// The room of one gateway.
#[derive(Debug)]
pub(crate) struct LargeAnswers {
    asked: Arc<Semaphore>,
    /// A permit for each byte, and how many there are; `None` is no bound.
    waiting: Option<(Arc<Semaphore>, u32)>,
    /// Places for answers that wait for that.
    patient: Semaphore,
}

/// A turn to ask for an answer, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    _place: Option<OwnedSemaphorePermit>,
}

/// There is no room for an answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoRoom;

/// The room of one answer; given back when dropped.
#[derive(Debug)]
pub(crate) struct Room {
    /// `None`: it needs none.
    _bytes: Option<OwnedSemaphorePermit>,
}

impl LargeAnswers {
    /// Room for so many bytes of answers that wait for clients; `None` is no bound.
    pub(crate) fn new(waiting_bytes_max: Option<usize>) -> Self {
        let waiting = waiting_bytes_max.map(|max| {
            let max = u32::try_from(max).unwrap_or(u32::MAX);
            let permits = usize::try_from(max).unwrap_or(Semaphore::MAX_PERMITS);
            let permits = permits.min(Semaphore::MAX_PERMITS);
            (Arc::new(Semaphore::new(permits)), max)
        });
        Self {
            asked: Arc::new(Semaphore::new(ASKED_MAX)),
            waiting,
            patient: Semaphore::new(PATIENT_MAX),
        }
    }

    /// Waits for a turn to ask for one. Cancel-safe.
    pub(crate) async fn turn(&self) -> Turn {
        Turn {
            _place: Arc::clone(&self.asked).acquire_owned().await.ok(),
        }
    }

    /// Room for an answer of this length in bytes, which is waited for a moment; the next one may be asked meanwhile. An answer that is
    /// longer than all the room together has it to itself. Cancel-safe.
    ///
    /// # Errors
    /// When others have taken it.
    pub(crate) async fn room(&self, len: usize, turn: Turn) -> Result<Room, NoRoom> {
        let Some((waiting, max)) = self.waiting.as_ref().filter(|_| len >= LARGE_MIN) else {
            return Ok(Room { _bytes: None });
        };
        let len = u32::try_from(len).unwrap_or(u32::MAX).min(*max);
        if let Ok(bytes) = Arc::clone(waiting).try_acquire_many_owned(len) {
            return Ok(Room {
                _bytes: Some(bytes),
            });
        }
        let _patient = self.patient.try_acquire().map_err(|_| NoRoom)?;
        drop(turn);
        let bytes = timeout(ROOM_PATIENCE, Arc::clone(waiting).acquire_many_owned(len)).await;
        match bytes {
            Ok(Ok(bytes)) => Ok(Room {
                _bytes: Some(bytes),
            }),
            _ => Err(NoRoom),
        }
    }
}

/// Topic lists and schemas that are asked of brokers at a time.
const ASKED_MAX: usize = 64;
/// Answers that wait for room at a time.
const PATIENT_MAX: usize = 64;
/// How long one does. Clients that read make room in less.
const ROOM_PATIENCE: Duration = Duration::from_secs(2);
/// From this length on an answer needs room. Shorter ones are bounded by the number of requests of a connection.
const LARGE_MIN: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};

    use tokio::time::{Instant, advance};

    use super::*;

    async fn room(answers: &LargeAnswers, len: usize) -> Result<Room, NoRoom> {
        answers.room(len, answers.turn().await).await
    }

    /// Whether it is not there yet.
    async fn waits<T>(future: Pin<&mut impl Future<Output = T>>) -> bool {
        timeout(Duration::ZERO, future).await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn large_answers_share_their_room_and_small_ones_need_none() {
        let answers = LargeAnswers::new(Some(10 * LARGE_MIN));
        let first = room(&answers, 8 * LARGE_MIN).await.unwrap();
        let second = room(&answers, 2 * LARGE_MIN).await.unwrap();
        let begun = Instant::now();
        room(&answers, LARGE_MIN - 1).await.unwrap();
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert_eq!(room(&answers, LARGE_MIN).await.unwrap_err(), NoRoom);
        assert_eq!(begun.elapsed(), ROOM_PATIENCE);
        // One that never fits has its turn when there is nothing else.
        let mut all = pin!(room(&answers, 1000 * LARGE_MIN));
        assert!(waits(all.as_mut()).await);
        drop(first);
        assert!(waits(all.as_mut()).await);
        drop(second);
        let all = all.await.unwrap();
        assert_eq!(room(&answers, LARGE_MIN).await.unwrap_err(), NoRoom);
        drop(all);
        room(&answers, LARGE_MIN).await.unwrap();
    }

    #[tokio::test]
    async fn without_a_bound_there_is_always_room() {
        let answers = LargeAnswers::new(None);
        let mut all = Vec::new();
        for _ in 0..100 {
            all.push(room(&answers, usize::MAX).await.unwrap());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_wait_for_room_are_few_and_keep_nobody_from_asking() {
        let answers = LargeAnswers::new(Some(LARGE_MIN));
        let taken = room(&answers, LARGE_MIN).await.unwrap();
        let mut waiting: Vec<_> = (0..PATIENT_MAX)
            .map(|_| Box::pin(room(&answers, LARGE_MIN)))
            .collect();
        for waiting in &mut waiting {
            assert!(waits(waiting.as_mut()).await);
        }
        assert_eq!(answers.asked.available_permits(), ASKED_MAX);
        let begun = Instant::now();
        assert_eq!(room(&answers, LARGE_MIN).await.unwrap_err(), NoRoom);
        assert_eq!(begun.elapsed(), Duration::ZERO, "there is no place to wait");
        drop(taken);
        assert!(waiting.remove(0).await.is_ok());
        advance(ROOM_PATIENCE).await;
        // Given back, and free for who comes next, as soon as those that wait have given up.
        drop(waiting);
        room(&answers, LARGE_MIN).await.unwrap();
        assert_eq!(answers.patient.available_permits(), PATIENT_MAX);
    }

    #[tokio::test]
    async fn so_many_are_asked_at_a_time() {
        let answers = LargeAnswers::new(None);
        let mut turns = Vec::new();
        for _ in 0..ASKED_MAX {
            turns.push(answers.turn().await);
        }
        let mut next = pin!(answers.turn());
        assert!(waits(next.as_mut()).await);
        turns.pop();
        next.await;
    }
}
