//! What time it is; for the drivers, which pass it on.

use std::time::SystemTime;

use super::UnixTime;

/// The time of the system's clock. Before 1970 it is 1970.
#[must_use]
pub fn now() -> UnixTime {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    UnixTime::new(since.unwrap_or_default())
}
