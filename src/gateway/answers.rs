//! Room for answers that may be megabytes: topics of a namespace and schemas.
//!
//! One connection has few of them at a time, but there are many connections, and a client may ask and not read. So two things are
//! bounded for all of them together: how many are asked of brokers, which takes as long as brokers do, and how many bytes of answers
//! wait for clients, which may take long. A client that does not read cannot keep others from asking; where it and its like have
//! taken all the room, large answers give way to an error, and small ones pass.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The room of one gateway.
#[derive(Debug)]
pub(crate) struct LargeAnswers {
    asked: Arc<Semaphore>,
    /// A permit for each byte, and how many there are; `None` is no bound.
    waiting: Option<(Arc<Semaphore>, u32)>,
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
        }
    }

    /// A turn to ask for one, until it is dropped. Cancel-safe.
    pub(crate) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.asked).acquire_owned().await.ok()
    }

    /// Room for an answer of this length in bytes. One that is longer than all the room together has it to itself.
    ///
    /// # Errors
    /// When others have taken it.
    pub(crate) fn room(&self, len: usize) -> Result<Room, NoRoom> {
        let bytes = match &self.waiting {
            Some((waiting, max)) if len >= LARGE_MIN => {
                let len = u32::try_from(len).unwrap_or(u32::MAX).min(*max);
                let bytes = Arc::clone(waiting).try_acquire_many_owned(len);
                Some(bytes.map_err(|_| NoRoom)?)
            }
            _ => None,
        };
        Ok(Room { _bytes: bytes })
    }
}

/// Topic lists and schemas that are asked of brokers at a time.
const ASKED_MAX: usize = 64;
/// From this length on an answer needs room. Shorter ones are bounded by the number of requests of a connection.
const LARGE_MIN: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_answers_share_their_room_and_small_ones_need_none() {
        let answers = LargeAnswers::new(Some(10 * LARGE_MIN));
        let first = answers.room(8 * LARGE_MIN).unwrap();
        let second = answers.room(2 * LARGE_MIN).unwrap();
        assert_eq!(answers.room(LARGE_MIN).unwrap_err(), NoRoom);
        answers.room(LARGE_MIN - 1).unwrap();
        drop(first);
        answers.room(8 * LARGE_MIN).unwrap();
        // One that never fits has its turn when there is nothing else.
        assert_eq!(answers.room(1000 * LARGE_MIN).unwrap_err(), NoRoom);
        drop(second);
        let all = answers.room(1000 * LARGE_MIN).unwrap();
        assert_eq!(answers.room(LARGE_MIN).unwrap_err(), NoRoom);
        drop(all);
        answers.room(LARGE_MIN).unwrap();
    }

    #[test]
    fn without_a_bound_there_is_always_room() {
        let answers = LargeAnswers::new(None);
        let _all: Vec<Room> = (0..100)
            .map(|_| answers.room(usize::MAX).unwrap())
            .collect();
    }

    #[tokio::test]
    async fn so_many_are_asked_at_a_time() {
        let answers = LargeAnswers::new(None);
        let mut turns = Vec::new();
        for _ in 0..ASKED_MAX {
            turns.push(answers.turn().await);
        }
        let waiting = answers.turn();
        let mut waiting = std::pin::pin!(waiting);
        let none = tokio::time::timeout(std::time::Duration::ZERO, waiting.as_mut()).await;
        assert!(none.is_err(), "{none:?}");
        turns.pop();
        assert!(waiting.await.is_some());
    }
}
