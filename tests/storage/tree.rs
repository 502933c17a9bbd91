//! Metadata operations of the workload: what they were told, and a plain model of what the tree is after each.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use pulsegate::metadata::{
    CreateMode, EmbeddedMetadata, Expected, MetadataStore, NodePath, Version,
};
use rand::RngExt;
use rand::rngs::StdRng;

use super::Stamp;

/// Value, version, and how many nodes were made directly below.
type Node = (Bytes, u32, u64);
/// The nodes that outlive the process.
pub(crate) type Tree = BTreeMap<String, Node>;

/// What the tree was told to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TreeHistory {
    /// What there is after so many operations.
    states: Vec<Tree>,
    /// (when, how many operations were answered).
    answered: Vec<(Stamp, usize)>,
}

/// The tree as it is while the workload runs, ephemeral nodes included.
#[derive(Debug, Default)]
pub(crate) struct Model {
    nodes: Tree,
    ephemeral: std::collections::BTreeSet<String>,
    operations: u64,
}

#[derive(Debug, Clone)]
enum Operation {
    Create(String, Bytes, CreateMode),
    Put(String, Bytes, Expected),
    DeleteRecursive(String),
}

impl Default for TreeHistory {
    fn default() -> Self {
        let root = ("/".to_owned(), (Bytes::new(), 0, 0));
        Self {
            states: vec![Tree::from([root])],
            answered: Vec::new(),
        }
    }
}

impl TreeHistory {
    /// Whether what is found is what there was after all operations that were answered by then, and maybe some more.
    pub(crate) fn check(&self, found: &Tree, cut: Stamp, what: &str) {
        let answered = self.answered.iter().rev().find(|(when, _)| *when <= cut);
        let known = answered.map_or(0, |(_, count)| *count);
        let mut possible = self.states[known..].iter();
        assert!(
            possible.any(|state| state == found),
            "{what}: the tree is not that of {known} answered operations or more: {found:?}, at {known} it was {:?}",
            self.states[known]
        );
    }

    /// Whether it was like this once.
    pub(crate) fn was(&self, found: &Tree) -> bool {
        self.states.contains(found)
    }
}

impl Model {
    /// Starts the next operation; `history` is told when it is answered.
    pub(crate) fn go_on(
        &mut self,
        random: &mut StdRng,
        store: &Arc<EmbeddedMetadata>,
        history: &Rc<std::cell::RefCell<super::History>>,
        stamp: impl Fn() -> Stamp + 'static,
    ) {
        self.nodes.entry("/".to_owned()).or_default();
        let operation = self.draw(random);
        let succeeds = self.change(&operation);
        let number = {
            let mut history = history.borrow_mut();
            history.tree.states.push(self.durable());
            history.tree.states.len() - 1
        };
        let (store, history) = (Arc::clone(store), Rc::clone(history));
        // Tasks are polled in the order in which they are spawned, and so operations take effect in this order.
        tokio::task::spawn_local(async move {
            let done = operation.run(&store).await;
            assert_eq!(done, succeeds, "{operation:?}");
            let mut history = history.borrow_mut();
            history.tree.answered.push((stamp(), number));
        });
    }

    fn draw(&mut self, random: &mut StdRng) -> Operation {
        self.operations += 1;
        let value = Bytes::from(vec![b'v'; random.random_range(0..200)]);
        let top = random.random_range(0..3);
        let below = random.random_range(0..4);
        let path = format!("/top-{top}/node-{below}");
        match random.random_range(0..10) {
            0..2 => Operation::Create(path, value, CreateMode::Persistent),
            2..4 => Operation::Create(
                format!("/top-{top}/seq-"),
                value,
                CreateMode::PersistentSequential,
            ),
            4 => Operation::Create(
                format!("/top-{top}/gone-"),
                value,
                CreateMode::EphemeralSequential,
            ),
            5..9 => {
                let version = self.nodes.get(&path).map_or(0, |node| node.1);
                let expected = match random.random_range(0..3) {
                    0 => Expected::Any,
                    _ => Expected::Version(Version(version)),
                };
                Operation::Put(path, value, expected)
            }
            _ => Operation::DeleteRecursive(format!("/top-{top}")),
        }
    }

    /// Returns whether it succeeds.
    fn change(&mut self, operation: &Operation) -> bool {
        match operation {
            Operation::Create(path, value, mode) => {
                let parent = above(path);
                let mut path = path.clone();
                if mode.is_sequential() {
                    let made = self.nodes.get(&parent).map_or(0, |node| node.2);
                    path = format!("{path}{made:010}");
                }
                if self.nodes.contains_key(&path) {
                    return false;
                }
                self.make(&path, value);
                if mode.is_ephemeral() {
                    self.ephemeral.insert(path);
                }
                true
            }
            Operation::Put(path, value, expected) => match self.nodes.get_mut(path) {
                Some(node) => {
                    // Versions are those that the model has.
                    node.0 = value.clone();
                    node.1 += 1;
                    true
                }
                None if matches!(expected, Expected::Version(_)) => false,
                None => {
                    self.make(path, value);
                    true
                }
            },
            Operation::DeleteRecursive(top) => {
                let below = format!("{top}/");
                self.nodes
                    .retain(|path, _| path != top && !path.starts_with(&below));
                self.ephemeral.retain(|path| !path.starts_with(&below));
                true
            }
        }
    }

    fn make(&mut self, path: &str, value: &Bytes) {
        let parent = above(path);
        if !self.nodes.contains_key(&parent) {
            self.make(&parent, &Bytes::new());
        }
        self.nodes.get_mut(&parent).expect("made").2 += 1;
        self.nodes.insert(path.to_owned(), (value.clone(), 0, 0));
    }

    fn durable(&self) -> Tree {
        let lasting = self
            .nodes
            .iter()
            .filter(|(path, _)| !self.ephemeral.contains(*path));
        lasting
            .map(|(path, node)| (path.clone(), node.clone()))
            .collect()
    }
}

impl Operation {
    async fn run(&self, store: &EmbeddedMetadata) -> bool {
        let path = |text: &String| NodePath::parse(text).expect("a path");
        match self {
            Self::Create(at, value, mode) => {
                store.create(&path(at), value.clone(), *mode).await.is_ok()
            }
            Self::Put(at, value, expected) => {
                store.put(&path(at), value.clone(), *expected).await.is_ok()
            }
            Self::DeleteRecursive(at) => store.delete_recursive(&path(at)).await.is_ok(),
        }
    }
}

/// The tree that keys and values amount to.
pub(crate) fn stored(pairs: impl IntoIterator<Item = (Bytes, Bytes)>) -> Tree {
    let nodes = EmbeddedMetadata::stored_nodes(pairs).expect("its own");
    nodes
        .into_iter()
        .map(|node| {
            (
                node.path.to_string(),
                (node.value, node.version.0, node.children_made),
            )
        })
        .collect()
}

fn above(path: &str) -> String {
    match path.rsplit_once('/') {
        Some(("", _)) | None => "/".to_owned(),
        Some((above, _)) => above.to_owned(),
    }
}
