//! The tree of nodes in memory, and what changes do to it. Pure; both the memory and the embedded engine are made of it.
//!
//! A request is first planned, which changes nothing and finds every reason to refuse it, and the plan is then applied.
//! Between the two an engine can make the plan durable.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;

use super::{
    CreateMode, Created, Event, Expected, MetadataError, Node, NodePath, Owner, Stat, Version,
};

/// A session, as the tree tells them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SessionId(pub(super) u64);

/// The nodes. The root is always among them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tree {
    nodes: BTreeMap<NodePath, TreeNode>,
}

/// A node of the tree.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct TreeNode {
    pub(super) value: Bytes,
    pub(super) version: Version,
    pub(super) created: i64,
    pub(super) modified: i64,
    /// The session that it ends with.
    pub(super) session: Option<SessionId>,
    /// Nodes ever made directly below it: the number that a sequential one gets.
    pub(super) children_made: u64,
    /// Nodes directly below it.
    pub(super) children: u64,
}

/// A change that somebody asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    Put {
        path: NodePath,
        value: Bytes,
        expected: Expected,
    },
    Create {
        path: NodePath,
        value: Bytes,
        mode: CreateMode,
    },
    Delete {
        path: NodePath,
        expected: Option<Version>,
    },
    DeleteRecursive {
        path: NodePath,
    },
    /// The session is over.
    EndSession,
}

/// A step that cannot fail any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// A node is made, of version 0, below one that exists.
    Create {
        path: NodePath,
        value: Bytes,
        session: Option<SessionId>,
        at: i64,
    },
    /// A node's value is set; its version grows by 1.
    Set {
        path: NodePath,
        value: Bytes,
        at: i64,
    },
    /// A node without any below it goes.
    Delete { path: NodePath },
}

/// What a request comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    /// In this order.
    pub(super) steps: Vec<Step>,
    /// The answer once they are taken.
    pub(super) answer: Answer,
}

/// The answer to a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    Stat(Stat),
    Created(Created),
    Done,
}

impl Answer {
    /// The answer to a put. Every plan of one has it.
    pub(super) fn stat(self) -> Result<Stat, MetadataError> {
        match self {
            Self::Stat(stat) => Ok(stat),
            Self::Created(_) | Self::Done => Err(MetadataError::Failed),
        }
    }

    /// The answer to a create. Every plan of one has it.
    pub(super) fn created(self) -> Result<Created, MetadataError> {
        match self {
            Self::Created(created) => Ok(created),
            Self::Stat(_) | Self::Done => Err(MetadataError::Failed),
        }
    }
}

impl Tree {
    /// Only the root.
    pub(super) fn new() -> Self {
        Self {
            nodes: BTreeMap::from([(NodePath::root(), TreeNode::default())]),
        }
    }

    /// A node as `session` sees it.
    pub(super) fn get(&self, path: &NodePath, session: SessionId) -> Option<Node> {
        let node = self.nodes.get(path)?;
        Some(Node {
            value: node.value.clone(),
            stat: node.stat(session),
        })
    }

    /// The names directly below a node, sorted. Costs two look-ups for each, however much is below them.
    pub(super) fn children(&self, path: &NodePath) -> Vec<String> {
        let mut names = Vec::new();
        let mut from = Bound::Included(path.before_all_below());
        while let Some((next, _)) = self.nodes.range((from, Bound::Unbounded)).next() {
            let Some(rest) = next.below(path) else {
                break;
            };
            from = match rest.split_once('/') {
                None => {
                    names.push(rest.to_owned());
                    Bound::Excluded(next.clone())
                }
                // Something below a child that has been seen.
                Some((name, _)) => match path.child(name) {
                    Ok(child) => Bound::Included(child.behind_all_below()),
                    Err(_) => break,
                },
            };
        }
        names
    }

    /// All nodes in the order of their paths, which puts what is above before what is below.
    pub(super) fn into_nodes(self) -> impl Iterator<Item = (NodePath, TreeNode)> {
        self.nodes.into_iter()
    }

    /// A node with all that is known of it.
    pub(super) fn node(&self, path: &NodePath) -> Option<&TreeNode> {
        self.nodes.get(path)
    }

    /// Plans a change by `session`.
    pub(super) fn plan(
        &self,
        change: Change,
        session: SessionId,
        now: i64,
    ) -> Result<Plan, MetadataError> {
        match change {
            Change::Put {
                path,
                value,
                expected,
            } => self.plan_put(path, value, expected, (session, now)),
            Change::Create { path, value, mode } => {
                self.plan_create(path, value, mode, (session, now))
            }
            Change::Delete { path, expected } => self.plan_delete(path, expected),
            Change::DeleteRecursive { path } => self.plan_delete_recursive(&path),
            Change::EndSession => Ok(self.plan_end(session)),
        }
    }

    fn plan_put(
        &self,
        path: NodePath,
        value: Bytes,
        expected: Expected,
        (session, now): (SessionId, i64),
    ) -> Result<Plan, MetadataError> {
        check_value(&value)?;
        let Some(node) = self.nodes.get(&path) else {
            if let Expected::Version(_) = expected {
                return Err(MetadataError::NotFound(path));
            }
            let plan = self.plan_create(path, value, CreateMode::Persistent, (session, now))?;
            let Answer::Created(created) = plan.answer else {
                return Ok(plan);
            };
            return Ok(Plan {
                steps: plan.steps,
                answer: Answer::Stat(created.stat),
            });
        };
        match expected {
            Expected::Absent => return Err(MetadataError::AlreadyExists(path)),
            Expected::Version(version) if version != node.version => {
                return Err(MetadataError::BadVersion(path));
            }
            Expected::Any | Expected::Version(_) => {}
        }
        let stat = Stat {
            version: node.version.next(),
            modified: now,
            ..node.stat(session)
        };
        Ok(Plan {
            steps: vec![Step::Set {
                path,
                value,
                at: now,
            }],
            answer: Answer::Stat(stat),
        })
    }

    fn plan_create(
        &self,
        path: NodePath,
        value: Bytes,
        mode: CreateMode,
        (session, now): (SessionId, i64),
    ) -> Result<Plan, MetadataError> {
        check_value(&value)?;
        let parent = path.parent().ok_or(MetadataError::Root)?;
        let (mut steps, children_made) = self.plan_parents(&parent, now)?;
        let path = if mode.is_sequential() {
            path.with_digits(&sequence(children_made))
        } else {
            path
        };
        if self.nodes.contains_key(&path) {
            return Err(MetadataError::AlreadyExists(path));
        }
        steps.push(Step::Create {
            path: path.clone(),
            value,
            session: mode.is_ephemeral().then_some(session),
            at: now,
        });
        let stat = Stat {
            version: Version(0),
            created: now,
            modified: now,
            owner: if mode.is_ephemeral() {
                Owner::ThisSession
            } else {
                Owner::Nobody
            },
        };
        Ok(Plan {
            steps,
            answer: Answer::Created(Created { path, stat }),
        })
    }

    /// What is missing of `parent` and above it, and how many nodes were made directly below it so far.
    fn plan_parents(&self, parent: &NodePath, now: i64) -> Result<(Vec<Step>, u64), MetadataError> {
        let mut missing = Vec::new();
        let mut above = parent.clone();
        let existing = loop {
            if let Some(node) = self.nodes.get(&above) {
                break node;
            }
            missing.push(above.clone());
            // The root exists, so the search ends there.
            above = above.parent().ok_or(MetadataError::Root)?;
        };
        if existing.session.is_some() {
            return Err(MetadataError::BelowEphemeral(above));
        }
        let children_made = if missing.is_empty() {
            existing.children_made
        } else {
            0
        };
        let make = |path| Step::Create {
            path,
            value: Bytes::new(),
            session: None,
            at: now,
        };
        Ok((missing.into_iter().rev().map(make).collect(), children_made))
    }

    fn plan_delete(
        &self,
        path: NodePath,
        expected: Option<Version>,
    ) -> Result<Plan, MetadataError> {
        if path.is_root() {
            return Err(MetadataError::Root);
        }
        let Some(node) = self.nodes.get(&path) else {
            return Err(MetadataError::NotFound(path));
        };
        if expected.is_some_and(|version| version != node.version) {
            return Err(MetadataError::BadVersion(path));
        }
        if node.children > 0 {
            return Err(MetadataError::NotEmpty(path));
        }
        Ok(Plan {
            steps: vec![Step::Delete { path }],
            answer: Answer::Done,
        })
    }

    fn plan_delete_recursive(&self, path: &NodePath) -> Result<Plan, MetadataError> {
        if path.is_root() {
            return Err(MetadataError::Root);
        }
        let Some((itself, _)) = self.nodes.get_key_value(path) else {
            return Ok(Plan {
                steps: Vec::new(),
                answer: Answer::Done,
            });
        };
        let below = self
            .nodes
            .range(path.before_all_below()..path.behind_all_below());
        let paths: Vec<&NodePath> = [itself]
            .into_iter()
            .chain(below.map(|(path, _)| path))
            .collect();
        // In the order of paths what is above comes first; the other way round it comes last.
        let steps = paths
            .into_iter()
            .rev()
            .map(|path| Step::Delete { path: path.clone() });
        Ok(Plan {
            steps: steps.collect(),
            answer: Answer::Done,
        })
    }

    fn plan_end(&self, session: SessionId) -> Plan {
        let ended = self
            .nodes
            .iter()
            .filter(|(_, node)| node.session == Some(session))
            .map(|(path, _)| Step::Delete { path: path.clone() });
        Plan {
            steps: ended.collect(),
            answer: Answer::Done,
        }
    }

    /// Takes a step of a plan made from this very tree; returns what watches are told. A step that does not fit, which
    /// only comes from a damaged record, is refused.
    pub(super) fn apply(&mut self, step: Step) -> Result<Vec<Event>, DoesNotFit> {
        match step {
            Step::Create {
                path,
                value,
                session,
                at,
            } => {
                let parent = path.parent().ok_or(DoesNotFit)?;
                if self.nodes.contains_key(&path) {
                    return Err(DoesNotFit);
                }
                let above = self.nodes.get_mut(&parent).ok_or(DoesNotFit)?;
                above.children_made = above.children_made.saturating_add(1);
                above.children += 1;
                let node = TreeNode {
                    value,
                    created: at,
                    modified: at,
                    session,
                    ..TreeNode::default()
                };
                self.nodes.insert(path.clone(), node);
                Ok(vec![Event::Created(path), Event::ChildrenChanged(parent)])
            }
            Step::Set { path, value, at } => {
                let node = self.nodes.get_mut(&path).ok_or(DoesNotFit)?;
                node.value = value;
                node.version = node.version.next();
                node.modified = at;
                Ok(vec![Event::Modified(path)])
            }
            Step::Delete { path } => {
                let parent = path.parent().ok_or(DoesNotFit)?;
                if self.nodes.get(&path).is_none_or(|node| node.children > 0) {
                    return Err(DoesNotFit);
                }
                self.nodes.remove(&path);
                let above = self.nodes.get_mut(&parent).ok_or(DoesNotFit)?;
                above.children = above.children.saturating_sub(1);
                Ok(vec![Event::Deleted(path), Event::ChildrenChanged(parent)])
            }
        }
    }

    /// How many nodes were ever made directly below a node.
    pub(super) fn children_made(&self, path: &NodePath) -> Option<u64> {
        self.nodes.get(path).map(|node| node.children_made)
    }

    /// Raises that number, for nodes that are gone.
    pub(super) fn raise_children_made(
        &mut self,
        path: &NodePath,
        to: u64,
    ) -> Result<(), DoesNotFit> {
        let node = self.nodes.get_mut(path).ok_or(DoesNotFit)?;
        node.children_made = node.children_made.max(to);
        Ok(())
    }

    /// Puts a node back as it was, in the order of [`Self::into_nodes`]. The root is put back over the one that is there.
    pub(super) fn restore(&mut self, path: NodePath, node: TreeNode) -> Result<(), DoesNotFit> {
        if let Some(parent) = path.parent() {
            if self.nodes.contains_key(&path) {
                return Err(DoesNotFit);
            }
            let above = self.nodes.get_mut(&parent).ok_or(DoesNotFit)?;
            above.children += 1;
        }
        let children = self.nodes.get(&path).map_or(0, |node| node.children);
        self.nodes.insert(path, TreeNode { children, ..node });
        Ok(())
    }
}

impl TreeNode {
    fn stat(&self, session: SessionId) -> Stat {
        Stat {
            version: self.version,
            created: self.created,
            modified: self.modified,
            owner: match self.session {
                None => Owner::Nobody,
                Some(owner) if owner == session => Owner::ThisSession,
                Some(_) => Owner::OtherSession,
            },
        }
    }
}

impl Version {
    /// The version after this one.
    pub(super) fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// A step that does not fit the tree it is applied to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DoesNotFit;

fn check_value(value: &Bytes) -> Result<(), MetadataError> {
    if value.len() > VALUE_LEN_MAX {
        return Err(MetadataError::ValueTooLong {
            len: value.len(),
            max: VALUE_LEN_MAX,
        });
    }
    Ok(())
}

/// As ZooKeeper writes the number of a sequential node: ten digits, more when there are more.
fn sequence(number: u64) -> String {
    format!("{number:010}")
}

/// Longest value, in bytes. ZooKeeper takes 1 MiB unless it is told otherwise (`jute.maxbuffer`), which topics with very many
/// ledgers exceed.
pub const VALUE_LEN_MAX: usize = 16 * 1024 * 1024;
