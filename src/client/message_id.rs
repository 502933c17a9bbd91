//! Where a message lies.

use std::{cmp::Ordering, fmt};

use crate::protocol::proto::pulsar::MessageIdData;

/// The place of a message in a topic: an entry of a ledger, and in a batch the place in that entry.
///
/// Ordered as the messages of one partition are; a message of a batch comes after the entry as such, so that an id
/// without a batch index is "before the first message of this entry".
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MessageId {
    /// The ledger.
    pub ledger_id: u64,
    /// The entry in the ledger.
    pub entry_id: u64,
    /// The partition of a partitioned topic.
    pub partition: Option<u32>,
    /// The place in a batch, from 0 on.
    pub batch_index: Option<u32>,
    /// How many messages the batch has, where known.
    pub batch_size: Option<u32>,
    /// Of a chunked message the place of its first chunk; the other fields are those of the last one.
    pub first_chunk: Option<Box<(u64, u64)>>,
}

impl MessageId {
    /// An entry of a topic that is no partition.
    pub fn of_entry(ledger_id: u64, entry_id: u64) -> Self {
        Self {
            ledger_id,
            entry_id,
            partition: None,
            batch_index: None,
            batch_size: None,
            first_chunk: None,
        }
    }

    /// Before every message. On the wire both ids are -1 (`MessageId.earliest` of Apache's clients).
    pub fn earliest() -> Self {
        Self::of_entry(u64::MAX, u64::MAX)
    }

    /// Behind every message. On the wire both ids are the greatest signed number.
    pub fn latest() -> Self {
        Self::of_entry(LATEST, LATEST)
    }

    /// Whether it is [`earliest`](Self::earliest).
    pub fn is_earliest(&self) -> bool {
        self.ledger_id == u64::MAX
    }

    /// Whether it is [`latest`](Self::latest).
    pub fn is_latest(&self) -> bool {
        self.ledger_id == LATEST
    }

    /// The form on the wire, without an ack set.
    pub fn to_data(&self) -> MessageIdData {
        MessageIdData {
            ledger_id: self.ledger_id,
            entry_id: self.entry_id,
            partition: self
                .partition
                .and_then(|partition| i32::try_from(partition).ok()),
            batch_index: self.batch_index.and_then(|index| i32::try_from(index).ok()),
            batch_size: self.batch_size.and_then(|size| i32::try_from(size).ok()),
            first_chunk_message_id: self.first_chunk.as_ref().map(|first| {
                Box::new(MessageIdData {
                    ledger_id: first.0,
                    entry_id: first.1,
                    ..MessageIdData::default()
                })
            }),
            ..MessageIdData::default()
        }
    }

    /// Out of the form on the wire, where -1 says that there is no partition or batch index.
    pub fn from_data(data: &MessageIdData) -> Self {
        Self {
            ledger_id: data.ledger_id,
            entry_id: data.entry_id,
            partition: data
                .partition
                .and_then(|partition| u32::try_from(partition).ok()),
            batch_index: data.batch_index.and_then(|index| u32::try_from(index).ok()),
            batch_size: data.batch_size.and_then(|size| u32::try_from(size).ok()),
            first_chunk: data
                .first_chunk_message_id
                .as_ref()
                .map(|first| Box::new((first.ledger_id, first.entry_id))),
        }
    }

    /// What the order is by: the earliest id is -1 on the wire and comes first.
    fn rank(&self) -> (u64, u64, u64) {
        let entry = (
            self.ledger_id.wrapping_add(1),
            self.entry_id.wrapping_add(1),
        );
        let index = self.batch_index.map_or(0, |index| u64::from(index) + 1);
        (entry.0, entry.1, index)
    }
}

impl Ord for MessageId {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.partition, self.rank())
            .cmp(&(other.partition, other.rank()))
            .then_with(|| self.batch_size.cmp(&other.batch_size))
            .then_with(|| self.first_chunk.cmp(&other.first_chunk))
    }
}

impl PartialOrd for MessageId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// `ledger:entry:partition:batch index`, -1 where there is none, as Apache's clients print it.
impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let signed = |id: u64| id.cast_signed();
        write!(f, "{}:{}", signed(self.ledger_id), signed(self.entry_id))?;
        match self.partition {
            Some(partition) => write!(f, ":{partition}")?,
            None => f.write_str(":-1")?,
        }
        match self.batch_index {
            Some(index) => write!(f, ":{index}"),
            None => Ok(()),
        }
    }
}

/// The ids of [`MessageId::latest`].
const LATEST: u64 = i64::MAX as u64;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(entry_id: u64, batch_index: Option<u32>) -> MessageId {
        MessageId {
            batch_index,
            ..MessageId::of_entry(3, entry_id)
        }
    }

    #[test]
    fn ids_are_ordered_as_the_messages_lie() {
        let ordered = [
            MessageId::earliest(),
            at(0, None),
            at(0, Some(0)),
            at(0, Some(1)),
            at(1, None),
            MessageId::latest(),
        ];
        for pair in ordered.windows(2) {
            assert!(pair[0] < pair[1], "{pair:?}");
        }
    }

    #[test]
    fn the_wire_form_leads_back() {
        let id = MessageId {
            partition: Some(2),
            batch_index: Some(7),
            batch_size: Some(10),
            first_chunk: Some(Box::new((3, 1))),
            ..MessageId::of_entry(3, 4)
        };
        assert_eq!(MessageId::from_data(&id.to_data()), id);
        assert_eq!(id.to_string(), "3:4:2:7");
        assert_eq!(MessageId::earliest().to_string(), "-1:-1:-1");
    }
}
