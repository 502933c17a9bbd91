//! In which racks the bookies are: `/bookies`.

use std::collections::BTreeMap;

use super::json_values;

/// Bookies by group (`default` unless an administrator names one) and by their addresses, `host:port`.
pub type BookieRacks = BTreeMap<String, BTreeMap<String, BookieInfo>>;

json_values! {
    /// Where a bookie is.
    #[derive(Default)]
    pub struct BookieInfo {
        /// `/rack` or `/region/rack`.
        rack: String,
        /// Its host as people call it.
        #[serde(skip_serializing_if = "Option::is_none")]
        hostname: Option<String>,
    }
}
