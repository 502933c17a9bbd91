//! Small durable state by key: what the change records of the log amount to.
//!
//! The journal keeps it encoded, for checkpoints and for whoever opens a table; what values and deltas mean is their
//! owner's business, and so is replacing a long tail of deltas by a whole value.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes};

use super::format::{Change, Malformed, Reader};

/// Tables of the change log. Their numbers are forever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum Table {
    /// Nodes of the metadata tree.
    Metadata = 1,
    /// Cursors.
    Cursors = 2,
}

impl Table {
    /// Its number in the log.
    #[must_use]
    pub fn number(self) -> u16 {
        self as u16
    }
}

/// What a key has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Value {
    /// What was put last; `None`: there are only deltas.
    pub base: Option<Bytes>,
    /// What was added since.
    pub deltas: Vec<Bytes>,
}

/// All tables.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChangeLog {
    tables: BTreeMap<u16, BTreeMap<Bytes, Value>>,
}

impl ChangeLog {
    /// A change that is durable. Its bytes are copied: a value must not hold the memory of a whole group.
    pub fn apply(&mut self, table: u16, key: &Bytes, change: &Change) {
        let keys = self.tables.entry(table).or_default();
        match change {
            Change::Put(value) => {
                let value = Value {
                    base: Some(copy(value)),
                    deltas: Vec::new(),
                };
                if let Some(held) = keys.get_mut(key) {
                    *held = value;
                } else {
                    keys.insert(copy(key), value);
                }
            }
            Change::Delta(delta) => {
                if let Some(held) = keys.get_mut(key) {
                    held.deltas.push(copy(delta));
                } else {
                    keys.insert(
                        copy(key),
                        Value {
                            base: None,
                            deltas: vec![copy(delta)],
                        },
                    );
                }
            }
            Change::Delete => {
                keys.remove(key);
            }
        }
    }

    /// What a key has.
    #[must_use]
    pub fn value(&self, table: Table, key: &[u8]) -> Option<&Value> {
        self.tables.get(&table.number())?.get(key)
    }

    /// All keys of a table, in order.
    pub fn table(&self, table: Table) -> impl Iterator<Item = (&Bytes, &Value)> {
        self.tables.get(&table.number()).into_iter().flatten()
    }

    /// As a section of a checkpoint.
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (table, keys) in &self.tables {
            for (key, value) in keys {
                out.put_u16(*table);
                put_prefixed(&mut out, key);
                out.put_u8(u8::from(value.base.is_some()));
                if let Some(base) = &value.base {
                    put_prefixed(&mut out, base);
                }
                out.put_u32(u32::try_from(value.deltas.len()).unwrap_or(u32::MAX));
                value
                    .deltas
                    .iter()
                    .for_each(|delta| put_prefixed(&mut out, delta));
            }
        }
        out
    }

    /// Reads a section of a checkpoint.
    ///
    /// # Errors
    /// It is not one.
    pub fn restore(bytes: &Bytes) -> Result<Self, Malformed> {
        let mut log = Self::default();
        let mut reader = Reader::new(bytes);
        while !reader.is_empty() {
            let table = reader.u16()?;
            let key = copy(&reader.prefixed()?);
            let has_base = reader.u8()? != 0;
            let base = if has_base {
                Some(copy(&reader.prefixed()?))
            } else {
                None
            };
            let mut value = Value {
                base,
                deltas: Vec::new(),
            };
            for _ in 0..reader.u32()? {
                value.deltas.push(copy(&reader.prefixed()?));
            }
            log.tables.entry(table).or_default().insert(key, value);
        }
        Ok(log)
    }
}

fn copy(bytes: &Bytes) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

pub(crate) fn put_prefixed(out: &mut Vec<u8>, bytes: &[u8]) {
    out.put_u32(u32::try_from(bytes.len()).expect("values are bounded by the length of a record"));
    out.put_slice(bytes);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn changes() -> impl Strategy<Value = Vec<(u16, Bytes, Change)>> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..4).prop_map(Bytes::from);
        let change = prop_oneof![
            bytes().prop_map(Change::Put),
            bytes().prop_map(Change::Delta),
            Just(Change::Delete),
        ];
        let key = (0..5_u8).prop_map(|key| Bytes::copy_from_slice(&[key]));
        proptest::collection::vec((1..3_u16, key, change), 0..60)
    }

    proptest! {
        #[test]
        fn a_value_is_what_was_put_last_and_all_deltas_since(changes in changes()) {
            let mut log = ChangeLog::default();
            for (table, key, change) in &changes {
                log.apply(*table, key, change);
            }
            for table in [Table::Metadata, Table::Cursors] {
                for key in 0..5_u8 {
                    let mut expected: Option<Value> = None;
                    for (_, _, change) in changes.iter().filter(|(t, k, _)| *t == table.number() && k[..] == [key]) {
                        match change {
                            Change::Put(base) => expected = Some(Value { base: Some(base.clone()), deltas: vec![] }),
                            Change::Delta(delta) => expected.get_or_insert_default().deltas.push(delta.clone()),
                            Change::Delete => expected = None,
                        }
                    }
                    prop_assert_eq!(log.value(table, &[key]), expected.as_ref());
                }
            }
            let mut back = ChangeLog::restore(&Bytes::from(log.snapshot())).expect("own");
            log.tables.retain(|_, keys| !keys.is_empty());
            back.tables.retain(|_, keys| !keys.is_empty());
            prop_assert_eq!(back, log);
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = ChangeLog::restore(&Bytes::from(bytes));
        }
    }
}
