//! What the embedded store knows, and when it may say so. Pure.
//!
//! A request is planned on the tree as all requests before it leave it, what it does to keys is appended to the log, the tree is
//! changed, and the answer waits until that is durable. So does every answer of a later request, a read or a
//! refusal: it may rest on what is not durable yet.

use std::collections::VecDeque;

use bytes::Bytes;

use super::super::tree::{Answer, Change, Plan, SessionId, Step, Tree};
use super::super::{Event, MetadataError, Node, NodePath};
use super::change_log::{AppendError, LogProgress, Room};
use super::key_values::{KeyChange, RecordError, decode_tree, encode_steps};

/// Tells requests apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct RequestId(pub(super) u64);

/// What somebody asks for.
#[derive(Debug)]
pub(super) enum Request {
    Get(NodePath),
    Children(NodePath),
    Change(Change),
    Sync,
}

/// What happens to the store.
#[derive(Debug)]
pub(super) enum Input {
    /// A request, and the milliseconds since 1970.
    Request {
        id: RequestId,
        request: Request,
        now: i64,
    },
    /// The log's answer to [`Effect::Append`]. It has to be the next input.
    Appended(Result<u64, AppendError>),
    /// How far the log is.
    Progress(LogProgress),
}

/// What has to be done, in this order.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Append {
        changes: Vec<KeyChange>,
        room: Room,
    },
    Reply(RequestId, Outcome),
    Tell(Vec<Event>),
    /// The log has failed: the store is of no use any more.
    Fail,
}

/// The answer to a request.
pub(super) type Outcome = Result<Reply, MetadataError>;

/// The answer to a request that was carried out.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Node(Option<Node>),
    Children(Vec<String>),
    Change(Answer),
    Synced,
}

/// The state of the store.
#[derive(Debug)]
pub(super) struct State {
    tree: Tree,
    /// The number of the last change appended.
    appended: u64,
    /// All changes up to this number are durable.
    durable: u64,
    failed: bool,
    /// Planned, and not appended yet.
    planned: Option<(RequestId, Plan)>,
    /// Answers that wait for the log, their numbers never falling.
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    /// The change that has to be durable.
    after: u64,
    id: RequestId,
    outcome: Outcome,
    events: Vec<Event>,
}

impl State {
    /// What a log's keys and values make of an empty store. The log's next number is above 0.
    pub(super) fn recover(
        pairs: impl IntoIterator<Item = (Bytes, Bytes)>,
    ) -> Result<Self, (Bytes, RecordError)> {
        Ok(Self {
            tree: decode_tree(pairs)?,
            appended: 0,
            durable: 0,
            failed: false,
            planned: None,
            waiting: VecDeque::new(),
        })
    }

    /// The tree with all that was appended.
    #[cfg(test)]
    pub(super) fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Answers that wait for the log.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn step(&mut self, input: Input) -> Vec<Effect> {
        match input {
            Input::Request { id, request, now } => self.request(id, request, now),
            Input::Appended(result) => self.appended(result),
            Input::Progress(LogProgress::Durable(upto)) => self.durable(upto),
            Input::Progress(LogProgress::Failed) => self.fail(),
        }
    }

    fn request(&mut self, id: RequestId, request: Request, now: i64) -> Vec<Effect> {
        if self.failed {
            return vec![Effect::Reply(id, Err(MetadataError::Failed))];
        }
        let outcome = match request {
            Request::Get(path) => Ok(Reply::Node(self.tree.get(&path, THIS_SESSION))),
            Request::Children(path) => Ok(Reply::Children(self.tree.children(&path))),
            Request::Sync => Ok(Reply::Synced),
            Request::Change(change) => match self.tree.plan(change, THIS_SESSION, now) {
                Ok(plan) => return self.planned(id, plan),
                Err(refusal) => Err(refusal),
            },
        };
        self.answer(id, outcome, Vec::new())
    }

    fn planned(&mut self, id: RequestId, plan: Plan) -> Vec<Effect> {
        let changes = encode_steps(&self.tree, &plan.steps);
        if changes.is_empty() {
            return self.apply(id, plan);
        }
        let room = self.room(&plan.steps);
        self.planned = Some((id, plan));
        vec![Effect::Append { changes, room }]
    }

    fn appended(&mut self, result: Result<u64, AppendError>) -> Vec<Effect> {
        let Some((id, plan)) = self.planned.take() else {
            return Vec::new();
        };
        match result {
            Ok(number) => {
                assert!(number > self.appended, "a log numbers its changes upwards");
                self.appended = number;
                self.apply(id, plan)
            }
            // Nothing was changed, but what this rests on may not be durable.
            Err(AppendError::Full) => self.answer(id, Err(MetadataError::Full), Vec::new()),
            Err(AppendError::TooLong { len, max }) => self.answer(
                id,
                Err(MetadataError::ValueTooLong { len, max }),
                Vec::new(),
            ),
            Err(AppendError::Failed) => {
                let mut effects = self.fail();
                effects.push(Effect::Reply(id, Err(MetadataError::Failed)));
                effects
            }
        }
    }

    fn apply(&mut self, id: RequestId, plan: Plan) -> Vec<Effect> {
        let mut events = Vec::new();
        for step in plan.steps {
            let told = self.tree.apply(step);
            events.extend(told.expect("a plan fits the tree it was made from"));
        }
        self.answer(id, Ok(Reply::Change(plan.answer)), events)
    }

    fn answer(&mut self, id: RequestId, outcome: Outcome, events: Vec<Event>) -> Vec<Effect> {
        self.waiting.push_back(Waiting {
            after: self.appended,
            id,
            outcome,
            events,
        });
        self.settle()
    }

    fn durable(&mut self, upto: u64) -> Vec<Effect> {
        // It may be the number of somebody else's change, and so beyond the last one of the store.
        self.durable = self.durable.max(upto);
        self.settle()
    }

    /// Gives the answers that rest on durable changes only.
    fn settle(&mut self) -> Vec<Effect> {
        let mut effects = Vec::new();
        while let Some(first) = self
            .waiting
            .pop_front_if(|waiting| waiting.after <= self.durable)
        {
            // Whoever is told can read it, and who is answered has been told.
            if !first.events.is_empty() {
                effects.push(Effect::Tell(first.events));
            }
            effects.push(Effect::Reply(first.id, first.outcome));
        }
        effects
    }

    fn fail(&mut self) -> Vec<Effect> {
        if std::mem::replace(&mut self.failed, true) {
            return Vec::new();
        }
        let lost = self.waiting.drain(..);
        lost.map(|waiting| Effect::Reply(waiting.id, Err(MetadataError::Failed)))
            .chain([Effect::Fail])
            .collect()
    }

    /// What makes the tree no larger may take the reserve: it is how a full disk gets emptied.
    fn room(&self, steps: &[Step]) -> Room {
        let grows = steps.iter().any(|step| match step {
            Step::Create { .. } => true,
            Step::Set { path, value, .. } => self
                .tree
                .get(path, THIS_SESSION)
                .is_none_or(|node| value.len() > node.value.len()),
            Step::Delete { .. } => false,
        });
        if grows { Room::Free } else { Room::Reserved }
    }
}

/// The store lives as long as its process, and so does the one session with it.
const THIS_SESSION: SessionId = SessionId(1);
