//! Random sequences of changes on ZooKeeper and on both of our stores: the same answers, the same tree.

use bytes::Bytes;
use pulsegate::metadata::{
    CreateMode, Expected, MetadataError, MetadataStore, NodePath, Owner, Version,
};

use crate::engines::Engine;

/// One change.
#[derive(Debug, Clone)]
enum Change {
    Put(NodePath, Expected),
    Create(NodePath, CreateMode),
    Delete(NodePath, Option<Version>),
    DeleteRecursive(NodePath),
}

/// Our store answers each of the changes that the seed makes as ZooKeeper does.
///
/// # Panics
/// When an answer, or the tree at the end, differs.
pub(crate) async fn answers_alike(theirs: &Engine, ours: &Engine, seed: u64) {
    let top = NodePath::parse(&format!("/d{seed}")).expect("valid");
    let (theirs, ours) = (theirs.connect().await, ours.connect().await);
    let mut random = Random(seed);
    let mut taken = Vec::new();
    for _ in 0..120 {
        let change = random.change(&top);
        let answers = (
            outcome(theirs.store(), &change).await,
            outcome(ours.store(), &change).await,
        );
        taken.push(change);
        assert_eq!(answers.0, answers.1, "seed {seed}, the last of {taken:#?}");
    }
    let trees = (
        tree(theirs.store(), &top).await,
        tree(ours.store(), &top).await,
    );
    assert_eq!(trees.0, trees.1, "seed {seed}: {taken:#?}");
}

/// What both can say the same of a change: the path and version that came of it, or the kind of refusal.
async fn outcome(store: &dyn MetadataStore, change: &Change) -> Result<String, &'static str> {
    let value = Bytes::from_static(b"v");
    let done = match change {
        Change::Put(path, expected) => {
            let stat = store.put(path, value, *expected).await;
            stat.map(|stat| format!("{:?} {:?}", stat.version, stat.owner))
        }
        Change::Create(path, mode) => {
            let made = store.create(path, value, *mode).await;
            made.map(|made| format!("{} {:?}", made.path, made.stat.owner))
        }
        Change::Delete(path, expected) => {
            store.delete(path, *expected).await.map(|()| String::new())
        }
        Change::DeleteRecursive(path) => store.delete_recursive(path).await.map(|()| String::new()),
    };
    done.map_err(|error| match error {
        MetadataError::NotFound(_) => "not found",
        MetadataError::AlreadyExists(_) => "exists",
        MetadataError::BadVersion(_) => "version",
        MetadataError::NotEmpty(_) => "not empty",
        MetadataError::BelowEphemeral(_) => "below ephemeral",
        other => panic!("{change:?}: {other}"),
    })
}

/// Paths, versions, owners and values of all nodes, in the order in which they are found.
async fn tree(store: &dyn MetadataStore, top: &NodePath) -> Vec<(String, Version, Owner, Bytes)> {
    let mut found = Vec::new();
    let mut open = vec![top.clone()];
    while let Some(path) = open.pop() {
        if let Some(node) = store.get(&path).await.expect("read") {
            found.push((
                path.to_string(),
                node.stat.version,
                node.stat.owner,
                node.value,
            ));
        }
        for name in store.children(&path).await.expect("read") {
            open.push(path.child(&name).expect("a name"));
        }
    }
    found
}

/// Numbers from a seed (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        let place = self.below(u64::try_from(of.len()).expect("few"));
        of.get(usize::try_from(place).expect("few"))
            .expect("below the length")
    }

    /// On few paths, so that changes meet.
    fn change(&mut self, top: &NodePath) -> Change {
        const PATHS: &[&str] = &["a", "a/b", "a/b/c", "a-b", "a/s", "d/e", "a0", "a/b/c/d"];
        const MODES: &[CreateMode] = &[
            CreateMode::Persistent,
            CreateMode::Ephemeral,
            CreateMode::PersistentSequential,
            CreateMode::EphemeralSequential,
        ];
        let path = NodePath::parse(&format!("{top}/{}", self.pick(PATHS))).expect("valid");
        let version = Version(u32::try_from(self.below(3)).expect("small"));
        let expected = *self.pick(&[Expected::Any, Expected::Absent, Expected::Version(version)]);
        match self.below(8) {
            0..=2 => Change::Create(path, *self.pick(MODES)),
            3 | 4 => Change::Put(path, expected),
            5 | 6 => Change::Delete(path, *self.pick(&[None, Some(version)])),
            _ => Change::DeleteRecursive(path),
        }
    }
}
