//! The records of the embedded store's change log. Pure.
//!
//! All numbers are big-endian. A record is
//!
//! ```text
//! u8  form          1
//! u8  kind          1 = changes, 2 = nodes of a snapshot
//! ...               items of this kind until the record ends
//!
//! changes, one after the other:
//!   u8 1  create    path, i64 time, value    a persistent node, below one that exists
//!   u8 2  set       path, i64 time, value    the version grows by 1
//!   u8 3  delete    path
//!   u8 4  made      path, u64 number         at least so many nodes were made directly below
//!
//! node:             path, u32 version, i64 created, i64 modified, u64 nodes made directly below, value
//! path, value:      u32 length, bytes
//! ```
//!
//! Times are milliseconds since 1970. Checksums are the log's. Ephemeral nodes are in no record, since none outlives the
//! process; `made` keeps their numbers from coming again. Kinds and tags are never used for anything else.

use bytes::{BufMut, Bytes, BytesMut};

use super::super::tree::{Step, Tree, TreeNode};
use super::super::{NodePath, Version};

/// A decoded record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Record {
    Changes(Vec<Logged>),
    Nodes(Vec<(NodePath, TreeNode)>),
}

/// A change as it stands in a record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Logged {
    Step(Step),
    Made { path: NodePath, number: u64 },
}

/// Why a record cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// It ends too soon.
    #[error("it ends inside a field")]
    Truncated,
    /// It was written by a later version.
    #[error("it has the form {0}, only {FORM} is known")]
    Form(u8),
    /// Its kind, or that of an item, is not known.
    #[error("it holds the unknown kind {0}")]
    Kind(u8),
    /// A path in it is none.
    #[error("it names no path of a node")]
    Path,
    /// It does not fit what is there: a node to be made exists, or one to be changed does not.
    #[error("it does not fit the records before it")]
    DoesNotFit,
}

/// The record of steps that are about to be applied to `tree`; none when nothing of them outlives the process.
pub(super) fn encode_steps(tree: &Tree, steps: &[Step]) -> Option<Bytes> {
    let mut record = header(CHANGES);
    let empty = record.len();
    for step in steps {
        match step {
            Step::Create {
                path,
                session: Some(_),
                ..
            } => {
                // Nothing is below a new node, so a parent that these steps make has made this one only.
                let parent = path.parent()?;
                let number = tree.children_made(&parent).unwrap_or(0).saturating_add(1);
                record.put_u8(MADE);
                put_bytes(&mut record, parent.as_str().as_bytes());
                record.put_u64(number);
            }
            Step::Create {
                path, value, at, ..
            } => put_valued(&mut record, CREATE, path, *at, value),
            Step::Set { path, .. } | Step::Delete { path } if tree.is_ephemeral(path) => {}
            Step::Set { path, value, at } => put_valued(&mut record, SET, path, *at, value),
            Step::Delete { path } => {
                record.put_u8(DELETE);
                put_bytes(&mut record, path.as_str().as_bytes());
            }
        }
    }
    (record.len() > empty).then(|| record.freeze())
}

/// Records that make this tree without its ephemeral nodes, each of about [`SNAPSHOT_RECORD_LEN`] or of one node.
pub(super) fn encode_tree(tree: Tree) -> impl Iterator<Item = Bytes> {
    let mut nodes = tree
        .into_nodes()
        .filter(|(_, node)| node.session.is_none())
        .peekable();
    std::iter::from_fn(move || {
        nodes.peek()?;
        let mut record = header(NODES);
        while record.len() < SNAPSHOT_RECORD_LEN
            && let Some((path, node)) = nodes.next()
        {
            put_bytes(&mut record, path.as_str().as_bytes());
            record.put_u32(node.version.0);
            record.put_i64(node.created);
            record.put_i64(node.modified);
            record.put_u64(node.children_made);
            put_bytes(&mut record, &node.value);
        }
        Some(record.freeze())
    })
}

/// Reads a record.
///
/// # Errors
/// See [`RecordError`].
pub(super) fn decode(record: &Bytes) -> Result<Record, RecordError> {
    let mut reader = Reader {
        rest: record.clone(),
    };
    match reader.u8()? {
        FORM => {}
        other => return Err(RecordError::Form(other)),
    }
    match reader.u8()? {
        CHANGES => {
            let mut changes = Vec::new();
            while !reader.rest.is_empty() {
                changes.push(reader.change()?);
            }
            Ok(Record::Changes(changes))
        }
        NODES => {
            let mut nodes = Vec::new();
            while !reader.rest.is_empty() {
                nodes.push(reader.node()?);
            }
            Ok(Record::Nodes(nodes))
        }
        other => Err(RecordError::Kind(other)),
    }
}

struct Reader {
    rest: Bytes,
}

impl Reader {
    fn change(&mut self) -> Result<Logged, RecordError> {
        Ok(match self.u8()? {
            CREATE => Logged::Step(Step::Create {
                path: self.path()?,
                session: None,
                at: self.i64()?,
                value: self.bytes()?,
            }),
            SET => Logged::Step(Step::Set {
                path: self.path()?,
                at: self.i64()?,
                value: self.bytes()?,
            }),
            DELETE => Logged::Step(Step::Delete { path: self.path()? }),
            MADE => Logged::Made {
                path: self.path()?,
                number: self.u64()?,
            },
            other => return Err(RecordError::Kind(other)),
        })
    }

    fn node(&mut self) -> Result<(NodePath, TreeNode), RecordError> {
        let path = self.path()?;
        let node = TreeNode {
            version: Version(self.u32()?),
            created: self.i64()?,
            modified: self.i64()?,
            children_made: self.u64()?,
            value: self.bytes()?,
            ..TreeNode::default()
        };
        Ok((path, node))
    }

    fn path(&mut self) -> Result<NodePath, RecordError> {
        let bytes = self.bytes()?;
        let text = std::str::from_utf8(&bytes).map_err(|_| RecordError::Path)?;
        NodePath::parse(text).map_err(|_| RecordError::Path)
    }

    /// A copy: a slice would keep the whole record in memory, and what is read together into that.
    fn bytes(&mut self) -> Result<Bytes, RecordError> {
        let len = usize::try_from(self.u32()?).map_err(|_| RecordError::Truncated)?;
        if len > self.rest.len() {
            return Err(RecordError::Truncated);
        }
        Ok(Bytes::copy_from_slice(&self.rest.split_to(len)))
    }

    fn u8(&mut self) -> Result<u8, RecordError> {
        self.array::<1>().map(u8::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, RecordError> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, RecordError> {
        self.array().map(u64::from_be_bytes)
    }

    fn i64(&mut self) -> Result<i64, RecordError> {
        self.array().map(i64::from_be_bytes)
    }

    fn array<const LEN: usize>(&mut self) -> Result<[u8; LEN], RecordError> {
        let array = *self
            .rest
            .first_chunk::<LEN>()
            .ok_or(RecordError::Truncated)?;
        let _ = self.rest.split_to(LEN);
        Ok(array)
    }
}

fn header(kind: u8) -> BytesMut {
    let mut record = BytesMut::new();
    record.put_u8(FORM);
    record.put_u8(kind);
    record
}

fn put_valued(record: &mut BytesMut, tag: u8, path: &NodePath, at: i64, value: &Bytes) {
    record.put_u8(tag);
    put_bytes(record, path.as_str().as_bytes());
    record.put_i64(at);
    put_bytes(record, value);
}

fn put_bytes(record: &mut BytesMut, bytes: &[u8]) {
    let len = u32::try_from(bytes.len()).expect("paths and values have bounds far below 4 GiB");
    record.put_u32(len);
    record.put_slice(bytes);
}

const FORM: u8 = 1;
const CHANGES: u8 = 1;
const NODES: u8 = 2;
const CREATE: u8 = 1;
const SET: u8 = 2;
const DELETE: u8 = 3;
const MADE: u8 = 4;
/// About how long a record of a snapshot is, in bytes.
const SNAPSHOT_RECORD_LEN: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::super::super::tree::SessionId;
    use super::*;

    fn path(text: &str) -> NodePath {
        NodePath::parse(text).expect(text)
    }

    #[test]
    fn writes_the_bytes_that_are_documented() {
        let steps = [
            Step::Create {
                path: path("/a"),
                value: Bytes::from_static(b"x"),
                session: None,
                at: 1,
            },
            Step::Create {
                path: path("/a/e"),
                value: Bytes::from_static(b"gone"),
                session: Some(SessionId(1)),
                at: 1,
            },
            Step::Set {
                path: path("/a"),
                value: Bytes::new(),
                at: 2,
            },
            Step::Delete { path: path("/a") },
        ];
        let record = encode_steps(&Tree::new(), &steps).expect("not empty");
        let expected = [
            &[1, 1][..],
            &[
                1, 0, 0, 0, 2, b'/', b'a', 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, b'x',
            ],
            &[4, 0, 0, 0, 2, b'/', b'a', 0, 0, 0, 0, 0, 0, 0, 1],
            &[
                2, 0, 0, 0, 2, b'/', b'a', 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0,
            ],
            &[3, 0, 0, 0, 2, b'/', b'a'],
        ];
        assert_eq!(record, expected.concat());
        let Ok(Record::Changes(changes)) = decode(&record) else {
            panic!("not decoded");
        };
        assert_eq!(changes.len(), 4);
    }

    #[test]
    fn refuses_damaged_records_without_a_panic() {
        let steps = [Step::Create {
            path: path("/a"),
            value: Bytes::from_static(b"x"),
            session: None,
            at: 1,
        }];
        let record = encode_steps(&Tree::new(), &steps).expect("not empty");
        for len in 0..record.len() {
            // Behind the header there is a record without changes.
            let cut = decode(&record.slice(..len));
            assert!(cut.is_err() || len == 2, "{len}: {cut:?}");
        }
        for place in 0..record.len() {
            for bit in 0..8 {
                let mut damaged = record.to_vec();
                damaged[place] ^= 1 << bit;
                let _ = decode(&damaged.into());
            }
        }
        assert_eq!(
            decode(&Bytes::from_static(&[2, 1])),
            Err(RecordError::Form(2))
        );
        assert_eq!(
            decode(&Bytes::from_static(&[1, 9])),
            Err(RecordError::Kind(9))
        );
        assert_eq!(
            decode(&Bytes::from_static(&[1, 1, 3, 0, 0, 0, 1, b'a'])),
            Err(RecordError::Path)
        );
    }
}
