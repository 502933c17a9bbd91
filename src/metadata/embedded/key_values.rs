//! The tree as keys and values of a log. Pure.
//!
//! All numbers are big-endian. A key is a byte that says what its value is, and the path of a node; values begin with their form, 1:
//!
//! ```text
//! key 1, path     u8 form, u32 version, i64 created, i64 modified, the node's value      a persistent node
//! key 2, path     u8 form, u64 number                    so many nodes were ever made directly below it
//! ```
//!
//! Times are milliseconds since 1970. Checksums are the log's. Ephemeral nodes have no key, since none outlives the process; the number
//! of nodes made below their parent keeps theirs from coming again. The number of a node that is not there is left over
//! from a deletion that the process did not live to complete, and counts for nothing. Keys and forms are never used for anything else.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};

use super::super::tree::{Step, Tree, TreeNode};
use super::super::{NodePath, Version};

/// What becomes of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyChange {
    /// The key.
    pub key: Bytes,
    /// Its value from now on; `None`: it has none.
    pub value: Option<Bytes>,
}

/// A node as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredNode {
    /// Where it is.
    pub path: NodePath,
    /// How often its value was set after it was made.
    pub version: Version,
    /// When it was made, in milliseconds since 1970.
    pub created: i64,
    /// When its value was set last, in milliseconds since 1970.
    pub modified: i64,
    /// How many nodes were ever made directly below it.
    pub children_made: u64,
    /// Its value.
    pub value: Bytes,
}

/// Why a key or a value cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// It ends too soon.
    #[error("it ends inside a field")]
    Truncated,
    /// It was written by a later version.
    #[error("it has the form {0}, only {FORM} is known")]
    Form(u8),
    /// What it is for is not known.
    #[error("its key is of the unknown kind {0}")]
    Kind(u8),
    /// The path in it is none.
    #[error("it names no path of a node")]
    Path,
    /// The node above is not there.
    #[error("there is no node above it")]
    DoesNotFit,
}

/// What steps that are about to be applied to `tree` do to keys, in an order of which any beginning leaves a tree; nothing when nothing
/// of them outlives the process.
pub(super) fn encode_steps(tree: &Tree, steps: &[Step]) -> Vec<KeyChange> {
    let mut changes = Vec::new();
    let mut made: BTreeMap<NodePath, u64> = BTreeMap::new();
    for step in steps {
        match step {
            Step::Create {
                path,
                value,
                session,
                at,
            } => {
                if let Some(parent) = path.parent() {
                    let before = tree.children_made(&parent).unwrap_or(0);
                    let number = made.entry(parent).or_insert(before);
                    *number = number.saturating_add(1);
                }
                if session.is_none() {
                    let node = TreeNode {
                        value: value.clone(),
                        created: *at,
                        modified: *at,
                        ..TreeNode::default()
                    };
                    changes.push(put(key(NODE, path), encode_node(&node)));
                }
            }
            Step::Set { path, value, at } => {
                if let Some(node) = tree.node(path).filter(|node| node.session.is_none()) {
                    let node = TreeNode {
                        value: value.clone(),
                        version: node.version.next(),
                        created: node.created,
                        modified: *at,
                        ..TreeNode::default()
                    };
                    changes.push(put(key(NODE, path), encode_node(&node)));
                }
            }
            Step::Delete { path } => {
                let Some(node) = tree.node(path).filter(|node| node.session.is_none()) else {
                    continue;
                };
                changes.push(gone(key(NODE, path)));
                if node.children_made > 0 {
                    changes.push(gone(key(MADE, path)));
                }
            }
        }
    }
    changes.extend(
        made.iter()
            .map(|(path, number)| put(key(MADE, path), encode_made(*number))),
    );
    changes
}

/// The tree that keys and values amount to.
pub(super) fn decode_tree(
    pairs: impl IntoIterator<Item = (Bytes, Bytes)>,
) -> Result<Tree, (Bytes, RecordError)> {
    let mut nodes = BTreeMap::new();
    let mut made = Vec::new();
    for (key, value) in pairs {
        let failed = |error| (key.clone(), error);
        let (kind, path) = decode_key(&key).map_err(failed)?;
        let mut reader = Reader { rest: value };
        reader.form().map_err(failed)?;
        match kind {
            NODE => {
                nodes.insert(path, (key.clone(), reader.node().map_err(failed)?));
            }
            MADE => made.push((path, reader.u64().map_err(failed)?)),
            other => return Err(failed(RecordError::Kind(other))),
        }
    }
    let mut tree = Tree::new();
    // What is above comes first.
    for (path, (key, node)) in nodes {
        tree.restore(path, node)
            .map_err(|_| (key, RecordError::DoesNotFit))?;
    }
    for (path, number) in made {
        // One without a node is a leftover.
        let _ = tree.raise_children_made(&path, number);
    }
    Ok(tree)
}

/// All nodes that keys and values amount to, in the order of their paths, the root first.
///
/// # Errors
/// The key that cannot be used, and why.
pub(super) fn stored_nodes(
    pairs: impl IntoIterator<Item = (Bytes, Bytes)>,
) -> Result<Vec<StoredNode>, (Bytes, RecordError)> {
    let nodes = decode_tree(pairs)?
        .into_nodes()
        .map(|(path, node)| StoredNode {
            path,
            version: node.version,
            created: node.created,
            modified: node.modified,
            children_made: node.children_made,
            value: node.value,
        });
    Ok(nodes.collect())
}

/// The path that a key is about; `None`: it is none of ours.
pub(super) fn path_of(key: &[u8]) -> Option<NodePath> {
    decode_key(key).ok().map(|(_, path)| path)
}

fn decode_key(key: &[u8]) -> Result<(u8, NodePath), RecordError> {
    let (kind, path) = key.split_first().ok_or(RecordError::Truncated)?;
    if ![NODE, MADE].contains(kind) {
        return Err(RecordError::Kind(*kind));
    }
    let text = std::str::from_utf8(path).map_err(|_| RecordError::Path)?;
    let path = NodePath::parse(text).map_err(|_| RecordError::Path)?;
    Ok((*kind, path))
}

struct Reader {
    rest: Bytes,
}

impl Reader {
    fn form(&mut self) -> Result<(), RecordError> {
        match self.array::<1>()? {
            [FORM] => Ok(()),
            [other] => Err(RecordError::Form(other)),
        }
    }

    /// Its value shares memory with what the log holds of it.
    fn node(mut self) -> Result<TreeNode, RecordError> {
        Ok(TreeNode {
            version: Version(u32::from_be_bytes(self.array()?)),
            created: i64::from_be_bytes(self.array()?),
            modified: i64::from_be_bytes(self.array()?),
            value: self.rest,
            ..TreeNode::default()
        })
    }

    fn u64(&mut self) -> Result<u64, RecordError> {
        self.array().map(u64::from_be_bytes)
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

fn key(kind: u8, path: &NodePath) -> Bytes {
    let path = path.as_str().as_bytes();
    let mut key = BytesMut::with_capacity(1 + path.len());
    key.put_u8(kind);
    key.put_slice(path);
    key.freeze()
}

fn encode_node(node: &TreeNode) -> Bytes {
    let mut value = BytesMut::with_capacity(NODE_HEADER + node.value.len());
    value.put_u8(FORM);
    value.put_u32(node.version.0);
    value.put_i64(node.created);
    value.put_i64(node.modified);
    value.put_slice(&node.value);
    value.freeze()
}

fn encode_made(number: u64) -> Bytes {
    let mut value = BytesMut::with_capacity(9);
    value.put_u8(FORM);
    value.put_u64(number);
    value.freeze()
}

fn put(key: Bytes, value: Bytes) -> KeyChange {
    KeyChange {
        key,
        value: Some(value),
    }
}

fn gone(key: Bytes) -> KeyChange {
    KeyChange { key, value: None }
}

const FORM: u8 = 1;
const NODE: u8 = 1;
const MADE: u8 = 2;
/// Bytes before the value of a node.
const NODE_HEADER: usize = 21;

#[cfg(test)]
mod tests {
    use super::super::super::tree::SessionId;
    use super::*;

    fn path(text: &str) -> NodePath {
        NodePath::parse(text).expect(text)
    }

    fn create(text: &str, value: &'static str, session: Option<SessionId>, at: i64) -> Step {
        Step::Create {
            path: path(text),
            value: Bytes::from_static(value.as_bytes()),
            session,
            at,
        }
    }

    #[test]
    fn writes_the_bytes_that_are_documented() {
        let mut tree = Tree::new();
        let made = [
            create("/a", "x", None, 1),
            create("/a/e", "gone", Some(SessionId(1)), 1),
        ];
        let changes = encode_steps(&tree, &made);
        let node = [
            1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1,
        ];
        let number = |number| Bytes::from(vec![1, 0, 0, 0, 0, 0, 0, 0, number]);
        let expected = [
            (&b"\x01/a"[..], Bytes::from([&node[..], b"x"].concat())),
            (b"\x02/", number(1)),
            (b"\x02/a", number(1)),
        ]
        .map(|(key, value)| put(Bytes::from_static(key), value));
        assert_eq!(changes, expected);
        for step in made {
            tree.apply(step).expect("fits");
        }
        let set = Step::Set {
            path: path("/a"),
            value: Bytes::new(),
            at: 2,
        };
        let node = [
            1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2,
        ];
        assert_eq!(
            encode_steps(&tree, &[set]),
            [put(
                Bytes::from_static(b"\x01/a"),
                Bytes::copy_from_slice(&node)
            )]
        );
        let delete = ["/a/e", "/a"].map(|text| Step::Delete { path: path(text) });
        assert_eq!(
            encode_steps(&tree, &delete),
            [
                gone(Bytes::from_static(b"\x01/a")),
                gone(Bytes::from_static(b"\x02/a"))
            ]
        );
    }

    #[test]
    fn refuses_what_it_cannot_read_without_a_panic() {
        let changes = encode_steps(&Tree::new(), &[create("/a", "x", None, 1)]);
        let pairs: Vec<(Bytes, Bytes)> = changes
            .into_iter()
            .map(|change| (change.key, change.value.expect("put")))
            .collect();
        assert!(decode_tree(pairs.clone()).is_ok());
        for (place, (key, value)) in pairs.iter().enumerate() {
            for length in 0..value.len().min(9) {
                let mut cut = pairs.clone();
                cut[place].1 = value.slice(..length);
                decode_tree(cut).expect_err("cut");
            }
            for at in 0..key.len() + value.len() {
                let mut damaged = [key.as_ref(), value.as_ref()].concat();
                damaged[at] ^= 4;
                let mut pairs = pairs.clone();
                let value = Bytes::from(damaged.split_off(key.len()));
                pairs[place] = (damaged.into(), value);
                let _ = decode_tree(pairs);
            }
        }
        let refused = |key: &'static [u8], value: &'static [u8]| {
            decode_tree([(Bytes::from_static(key), Bytes::from_static(value))])
                .map_err(|(_, error)| error)
                .expect_err("refused")
        };
        assert_eq!(refused(b"\x01/a", b"\x02"), RecordError::Form(2));
        assert_eq!(refused(b"\x09/a", b"\x01"), RecordError::Kind(9));
        assert_eq!(refused(b"\x01a", b"\x01"), RecordError::Path);
        assert_eq!(
            refused(b"\x01/a/b", &[1; NODE_HEADER]),
            RecordError::DoesNotFit
        );
    }

    #[test]
    fn the_number_of_a_node_that_is_gone_counts_for_nothing() {
        let leftover = put(key(MADE, &path("/a")), encode_made(7));
        let pairs = [(leftover.key, leftover.value.expect("put"))];
        assert_eq!(decode_tree(pairs), Ok(Tree::new()));
    }
}
