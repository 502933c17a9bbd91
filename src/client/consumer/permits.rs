//! How many messages a broker may send ahead to a consumer of one topic, by their number and their bytes. Pure.

use super::{ack_set, message::QueuedEntry};

/// The broker sent more than it was permitted to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PermitsExceeded;

/// How much may come before it is received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueueSize {
    /// Messages. 0: one at a time.
    pub(crate) messages: u32,
    /// Bytes of their entries.
    pub(crate) bytes: usize,
}

/// How many messages the broker may send.
#[derive(Debug)]
pub(super) struct Permits {
    /// 0: one at a time.
    queue_size: u32,
    /// The largest that it was for this attachment: so many may still come.
    queue_size_before: u32,
    /// Bytes that may wait.
    bytes_max: usize,
    /// Bytes that wait.
    held: usize,
    /// What a permit brings, in bytes: as much as the largest of the entries that came last for each of its messages.
    message_size: usize,
    /// What the broker has left of what it was given: at least what it thinks itself. Below 0 after a batch that was
    /// larger.
    available: i64,
    /// What it will be given.
    returned: u32,
    /// What it was given beyond a queue that has become smaller: so many are not given again.
    excess: u32,
    /// Entries that came although it had none left.
    overshoot: u32,
    is_paused: bool,
}

impl Permits {
    /// All of the queue is to be asked for.
    pub(super) fn new(queue_size: QueueSize) -> Self {
        Self {
            queue_size: queue_size.messages,
            queue_size_before: queue_size.messages,
            bytes_max: queue_size.bytes,
            held: 0,
            message_size: MESSAGE_SIZE_AT_FIRST,
            available: 0,
            returned: queue_size.messages,
            excess: 0,
            overshoot: 0,
            is_paused: false,
        }
    }

    /// Another attachment: what the last one was given counts no more.
    pub(super) fn reset(&mut self) {
        self.available = 0;
        self.queue_size_before = self.queue_size;
        self.returned = self.queue_size;
        self.excess = 0;
        self.overshoot = 0;
    }

    /// From now on so much may come ahead. What was asked for already still comes.
    pub(super) fn resize(&mut self, queue_size: QueueSize) {
        self.bytes_max = queue_size.bytes;
        // One at a time it stays.
        if self.queue_size == 0 || queue_size.messages == 0 {
            return;
        }
        let smaller = self.queue_size.saturating_sub(queue_size.messages);
        let larger = queue_size.messages.saturating_sub(self.queue_size);
        self.queue_size = queue_size.messages;
        self.queue_size_before = self.queue_size_before.max(self.queue_size);
        self.give_back(larger);
        let kept = smaller.min(self.returned);
        self.returned -= kept;
        self.excess = self.excess.saturating_add(smaller - kept);
    }

    /// An entry is to wait in the queue; says whether there is room for it.
    pub(super) fn take_in(&mut self, entry: &QueuedEntry) -> bool {
        let size = size_of_entry(entry);
        let messages = usize::try_from(entry.count).unwrap_or(usize::MAX);
        let of_message = size / messages.max(1);
        self.message_size = if of_message > self.message_size {
            of_message
        } else {
            self.message_size - (self.message_size - of_message) / 8
        };
        let most = self.bytes_max.saturating_mul(2).saturating_add(BYTES_SPARE);
        let held = self.held.saturating_add(size);
        if held > most && self.held > 0 {
            return false;
        }
        self.held = held;
        true
    }

    /// An entry left the queue.
    pub(super) fn take_out(&mut self, entry: &QueuedEntry) {
        self.held = self.held.saturating_sub(size_of_entry(entry));
    }

    /// An entry of `count` messages came.
    pub(super) fn use_for(&mut self, count: u32) -> Result<(), PermitsExceeded> {
        if self.available <= 0 {
            // Apache's broker reads as many entries as it has permits, without knowing how many messages are in them.
            if self.overshoot >= self.queue_size_before.max(1) {
                return Err(PermitsExceeded);
            }
            self.overshoot += 1;
        } else {
            self.overshoot = 0;
        }
        self.available = self.available.saturating_sub(i64::from(count));
        Ok(())
    }

    /// How many entries may wait. Permits bound those that take some, twice the queue with those beyond the permits; entries
    /// of which all messages are acknowledged take none.
    pub(super) fn entries_max(&self) -> usize {
        let entries = usize::try_from(self.queue_size_before).unwrap_or(usize::MAX);
        entries.saturating_mul(2).saturating_add(ENTRIES_SPARE)
    }

    /// Messages were consumed or dropped.
    pub(super) fn give_back(&mut self, count: u32) {
        // Without a queue permits are given for who waits, not for who was served.
        if self.queue_size > 0 {
            let kept = count.min(self.excess);
            self.excess -= kept;
            self.returned = self.returned.saturating_add(count - kept);
        }
    }

    /// Somebody waits for a message where there is no queue.
    pub(super) fn want_one(&mut self) {
        let coming = self.available.saturating_add(i64::from(self.returned));
        if self.queue_size == 0 && coming <= 0 {
            let missing = u32::try_from(1i64.saturating_sub(coming)).unwrap_or(u32::MAX);
            self.returned = self.returned.saturating_add(missing);
        }
    }

    /// Of those that the broker will be given, how many there is room for, but for one at least where nothing waits.
    fn grantable(&self) -> u32 {
        let room = self.bytes_max.saturating_sub(self.held) / self.message_size.max(1);
        let room = room.max(usize::from(self.held == 0));
        let room = i64::try_from(room).unwrap_or(i64::MAX);
        let free = room.saturating_sub(self.available);
        u32::try_from(free.clamp(0, i64::from(self.returned))).unwrap_or_default()
    }

    /// Whether enough may be asked for to be worth it.
    pub(super) fn is_due(&self) -> bool {
        if self.is_paused || self.returned == 0 {
            return false;
        }
        let window = self.bytes_max / self.message_size.max(1);
        let window = u32::try_from(window).unwrap_or(u32::MAX);
        let grantable = self.grantable();
        grantable > 0 && grantable >= self.queue_size.min(window) / 2
    }

    /// What to ask for now.
    pub(super) fn take_due(&mut self) -> Option<u32> {
        if !self.is_due() {
            return None;
        }
        let permits = self.grantable();
        self.returned -= permits;
        self.available = self.available.saturating_add(i64::from(permits));
        Some(permits)
    }

    /// Nothing waits any more.
    pub(super) fn drop_all(&mut self) {
        self.held = 0;
    }

    /// Whether more is asked for.
    pub(super) fn set_paused(&mut self, paused: bool) {
        self.is_paused = paused;
    }
}

/// How many permits an entry takes.
pub(crate) fn permits_of(messages: i32, ack_set: &[i64]) -> u32 {
    let messages = u32::try_from(messages).unwrap_or(1);
    ack_set::count_left(ack_set, messages)
}

/// What an entry counts in the queue, in bytes.
fn size_of_entry(entry: &QueuedEntry) -> usize {
    let words = entry.ack_set.len().saturating_mul(size_of::<i64>());
    size_of::<QueuedEntry>()
        .saturating_add(words)
        .saturating_add(entry.payload.len())
}

/// How large messages are taken for before there was one, in bytes: as large as brokers take them by default.
const MESSAGE_SIZE_AT_FIRST: usize = 5 << 20;

/// Bytes that may come beyond twice the bound: brokers read entries without knowing how many messages are in them, at most
/// 5 MiB at a time (`dispatcherMaxReadSizeBytes`).
const BYTES_SPARE: usize = 32 << 20;

/// Entries that may wait beyond those that permits are given for.
const ENTRIES_SPARE: usize = 64;
