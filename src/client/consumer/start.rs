//! Where a consumer begins, and so which messages it does not want. Pure.

use crate::{client::message_id::MessageId, protocol::proto::pulsar::MessageIdData};

use super::acknowledgements::Position;

/// A beginning. Brokers deliver from an entry on; messages of it that are before the beginning are left out here, as
/// Apache's clients do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StartPosition {
    id: Option<MessageId>,
    inclusive: bool,
    /// Only messages of the very entry are left out: the position of a durable subscription is the broker's affair.
    in_entry: bool,
}

impl StartPosition {
    /// Where the broker says.
    pub(crate) fn unset() -> Self {
        Self {
            id: None,
            inclusive: false,
            in_entry: false,
        }
    }

    /// At this message, or behind it.
    pub(crate) fn at(id: MessageId, inclusive: bool) -> Self {
        Self {
            id: Some(id),
            inclusive,
            in_entry: false,
        }
    }

    /// As [`at`](Self::at), where what is in other entries is not to be judged.
    pub(crate) fn in_entry(id: MessageId, inclusive: bool) -> Self {
        Self {
            in_entry: true,
            ..Self::at(id, inclusive)
        }
    }

    /// Whether it is behind every message that was there.
    pub(crate) fn is_latest(&self) -> bool {
        self.id.as_ref().is_some_and(MessageId::is_latest)
    }

    /// The id to send: the entry from which on the broker has to deliver.
    pub(crate) fn to_data(&self) -> Option<MessageIdData> {
        Some(to_data(self.id.as_ref()?, self.inclusive))
    }

    /// Whether a message comes before the beginning. `index`: its place in its batch, of `None` the entry is no batch.
    pub(crate) fn leaves_out(&self, position: Position, index: Option<u32>) -> bool {
        let Some(id) = self.id.as_ref() else {
            return false;
        };
        if id.is_earliest() || id.is_latest() {
            return false;
        }
        let last = (id.ledger_id, id.entry_id);
        let first = match &id.first_chunk {
            Some(first) if self.inclusive => **first,
            _ => last,
        };
        if position < first {
            return !self.in_entry;
        }
        if position > last {
            return false;
        }
        match (id.batch_index, index) {
            (Some(start), Some(index)) if self.inclusive => index < start,
            (Some(start), Some(index)) => index <= start,
            _ => !self.inclusive,
        }
    }

    /// Whether the last message of a topic is one that is not left out.
    pub(crate) fn is_before(&self, last: &MessageId) -> bool {
        let Some(id) = self.id.as_ref() else {
            return true;
        };
        if id.is_earliest() {
            return true;
        }
        let rank = |id: &MessageId| {
            let index = id.batch_index.map_or(u32::MAX, |index| index);
            (id.ledger_id, id.entry_id, index)
        };
        if self.inclusive {
            rank(last) >= rank(id)
        } else {
            rank(last) > rank(id)
        }
    }
}

/// The id of a start or of a seek on the wire. Of a message in several entries that is to be delivered it is the first one.
pub(crate) fn to_data(id: &MessageId, inclusive: bool) -> MessageIdData {
    let (ledger_id, entry_id) = match &id.first_chunk {
        Some(first) if inclusive => **first,
        _ => (id.ledger_id, id.entry_id),
    };
    MessageIdData {
        ledger_id,
        entry_id,
        partition: id
            .partition
            .and_then(|partition| i32::try_from(partition).ok()),
        batch_index: id.batch_index.and_then(|index| i32::try_from(index).ok()),
        ..MessageIdData::default()
    }
}
