//! The embedded store as a whole and its state against a naive model.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;

use super::key_values::KeyChange;
use super::state::{Effect, Input, Outcome, Reply, Request, RequestId, State};
use super::*;
use crate::metadata::{Event, Owner};

#[derive(Debug)]
struct StandingClock;

impl Clock for StandingClock {
    fn unix_millis(&self) -> i64 {
        1_700_000_000_000
    }

    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }
}

fn path(text: &str) -> NodePath {
    NodePath::parse(text).expect(text)
}

fn put(text: &str, value: &'static str) -> Change {
    Change::Put {
        path: path(text),
        value: Bytes::from_static(value.as_bytes()),
        expected: Expected::Any,
    }
}

type Log = Vec<Vec<KeyChange>>;

/// Takes a request; appends what has to be appended, with the next number.
fn request(state: &mut State, id: u64, request: Request, log: &mut Log) -> Vec<Effect> {
    let input = Input::Request {
        id: RequestId(id),
        request,
        now: 5,
    };
    let mut effects = state.step(input);
    if let Some(Effect::Append { changes, .. }) = effects.first() {
        log.push(changes.clone());
        let number = u64::try_from(log.len()).expect("few");
        effects = state.step(Input::Appended(Ok(number)));
    }
    effects
}

/// What a log amounts to.
fn pairs<'a>(changes: impl IntoIterator<Item = &'a KeyChange>) -> BTreeMap<Bytes, Bytes> {
    let mut pairs = BTreeMap::new();
    for change in changes {
        match &change.value {
            Some(value) => pairs.insert(change.key.clone(), value.clone()),
            None => pairs.remove(&change.key),
        };
    }
    pairs
}

fn replied(effects: &[Effect]) -> Vec<u64> {
    let replies = effects.iter().filter_map(|effect| match effect {
        Effect::Reply(id, _) => Some(id.0),
        _ => None,
    });
    replies.collect()
}

#[test]
fn answers_nothing_before_what_it_rests_on_is_durable() {
    let mut state = State::recover([]).expect("empty");
    let mut log = Vec::new();
    let mut ask = |state: &mut State, id, what| request(state, id, what, &mut log);
    assert_eq!(
        replied(&ask(&mut state, 0, Request::Get(path("/a")))),
        [0],
        "nothing is pending"
    );
    assert_eq!(ask(&mut state, 1, Request::Change(put("/a", "1"))), []);
    assert_eq!(
        ask(&mut state, 2, Request::Get(path("/a"))),
        [],
        "it would see what may be lost"
    );
    let refused = Change::Create {
        path: path("/a"),
        value: Bytes::new(),
        mode: CreateMode::Persistent,
    };
    assert_eq!(
        ask(&mut state, 3, Request::Change(refused)),
        [],
        "a refusal rests on it as well"
    );
    assert_eq!(ask(&mut state, 4, Request::Change(put("/b", "1"))), []);
    assert_eq!(state.step(Input::Progress(LogProgress::Durable(0))), []);
    let effects = state.step(Input::Progress(LogProgress::Durable(1)));
    assert_eq!(replied(&effects), [1, 2, 3]);
    assert!(
        matches!(
            &effects[..2],
            [Effect::Tell(_), Effect::Reply(RequestId(1), Ok(_))]
        ),
        "watches are told first: {effects:?}"
    );
    let seen = &effects[2];
    assert!(matches!(seen, Effect::Reply(_, Ok(Reply::Node(Some(node)))) if node.value == "1"));
    assert_eq!(
        replied(&state.step(Input::Progress(LogProgress::Durable(2)))),
        [4]
    );
    assert_eq!(state.waiting(), 0);
    // The log is shared: a record of somebody else makes the next number durable.
    state.step(Input::Progress(LogProgress::Durable(9)));
    assert_eq!(
        request(
            &mut state,
            5,
            Request::Change(put("/c", "1")),
            &mut vec![Vec::new(); 11]
        ),
        [],
        "its own is number 12"
    );
    assert_eq!(state.step(Input::Progress(LogProgress::Durable(11))), []);
    assert_eq!(
        replied(&state.step(Input::Progress(LogProgress::Durable(15)))),
        [5]
    );
}

#[test]
fn a_failed_log_fails_all_that_is_open_and_all_that_comes() {
    let mut state = State::recover([]).expect("empty");
    let mut log = Vec::new();
    request(&mut state, 1, Request::Change(put("/a", "1")), &mut log);
    request(&mut state, 2, Request::Sync, &mut log);
    let effects = state.step(Input::Progress(LogProgress::Failed));
    let failed = |id| Effect::Reply(RequestId(id), Err(MetadataError::Failed));
    assert_eq!(effects, [failed(1), failed(2), Effect::Fail]);
    assert_eq!(
        state.step(Input::Progress(LogProgress::Failed)),
        [],
        "it fails once"
    );
    assert_eq!(request(&mut state, 3, Request::Sync, &mut log), [failed(3)]);
    assert_eq!(
        request(&mut state, 4, Request::Change(put("/a", "1")), &mut log),
        [failed(4)]
    );
    assert_eq!(log.len(), 1, "nothing more is appended");
}

#[test]
fn an_append_that_fails_fails_the_store() {
    let mut state = State::recover([]).expect("empty");
    let mut log = Vec::new();
    request(&mut state, 1, Request::Change(put("/a", "1")), &mut log);
    let input = Input::Request {
        id: RequestId(2),
        request: Request::Change(put("/a", "2")),
        now: 5,
    };
    assert!(matches!(state.step(input)[..], [Effect::Append { .. }]));
    let failed = |id| Effect::Reply(RequestId(id), Err(MetadataError::Failed));
    assert_eq!(
        state.step(Input::Appended(Err(AppendError::Failed))),
        [failed(1), Effect::Fail, failed(2)]
    );
}

#[tokio::test]
async fn a_full_log_takes_what_makes_the_store_no_larger() {
    let log = Arc::new(MemoryLog::new());
    let store = EmbeddedMetadata::recover([], log.clone(), Arc::new(StandingClock)).expect("empty");
    let work = async {
        let value = Bytes::from_static(b"value");
        store
            .put(&path("/a"), value.clone(), Expected::Any)
            .await
            .expect("made");
        store
            .put(&path("/b"), value.clone(), Expected::Any)
            .await
            .expect("made");
        log.set_full(true);
        let before = log.pairs();
        let refused = store.put(&path("/c"), Bytes::new(), Expected::Any).await;
        assert_eq!(refused, Err(MetadataError::Full));
        let longer = Bytes::from_static(b"longer");
        assert_eq!(
            store.put(&path("/a"), longer.clone(), Expected::Any).await,
            Err(MetadataError::Full)
        );
        assert_eq!(log.pairs(), before);
        let node = store.get(&path("/a")).await.expect("read").expect("there");
        assert_eq!(node.value, value, "what was refused changed nothing");
        let shorter = Bytes::from_static(b"short");
        store
            .put(&path("/a"), shorter, Expected::Version(node.stat.version))
            .await
            .expect("set");
        store.delete(&path("/b"), None).await.expect("deleted");
        log.set_full(false);
        store
            .put(&path("/a"), longer, Expected::Any)
            .await
            .expect("room again");
    };
    tokio::select! {
        () = work => {}
        () = store.run() => panic!("the log is there"),
    }
}

#[tokio::test]
async fn a_store_whose_log_failed_says_so_and_ends_its_watches() {
    let log = Arc::new(MemoryLog::new());
    let store = EmbeddedMetadata::recover([], log.clone(), Arc::new(StandingClock)).expect("empty");
    let work = async {
        let mut watch = store
            .watch(&path("/a"), WatchScope::Node)
            .await
            .expect("watched");
        log.fail();
        assert_eq!(watch.next().await, None);
        assert_eq!(store.session().borrow().state, SessionState::Expired);
        assert_eq!(store.get(&path("/a")).await, Err(MetadataError::Failed));
        let refused = store.watch(&path("/a"), WatchScope::Node).await;
        assert_eq!(refused.map(drop), Err(MetadataError::Failed));
    };
    // The store's own end is part of what is tested.
    tokio::join!(work, store.run());
}

#[tokio::test]
async fn answers_to_those_who_gave_up_are_forgotten() {
    let log = Arc::new(MemoryLog::manual());
    let store = EmbeddedMetadata::recover([], log.clone(), Arc::new(StandingClock)).expect("empty");
    let (node, value) = (path("/a"), Bytes::new());
    {
        let mut given_up = store.put(&node, value, Expected::Any);
        let polled = futures_poll_once(&mut given_up);
        assert!(polled.is_none());
    }
    assert_eq!(store.inner.lock().replies.len(), 1);
    log.sync_to(1);
    store.step(Input::Progress(LogProgress::Durable(1)));
    assert!(store.inner.lock().replies.is_empty());
}

fn futures_poll_once<T>(future: &mut StoreFuture<'_, T>) -> Option<Result<T, MetadataError>> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.as_mut().poll(&mut context) {
        std::task::Poll::Ready(result) => Some(result),
        std::task::Poll::Pending => None,
    }
}

#[test]
fn a_value_that_the_log_does_not_take_changes_nothing() {
    let mut state = State::recover([]).expect("empty");
    let input = Input::Request {
        id: RequestId(1),
        request: Request::Change(put("/a", "1")),
        now: 5,
    };
    assert!(matches!(state.step(input)[..], [Effect::Append { .. }]));
    let refused = state.step(Input::Appended(Err(AppendError::TooLong {
        len: 9,
        max: 8,
    })));
    let error = MetadataError::ValueTooLong { len: 9, max: 8 };
    assert_eq!(refused, [Effect::Reply(RequestId(1), Err(error))]);
    assert_eq!(state.tree().children(&NodePath::root()), [""; 0]);
}

/// A change for the model: on few paths, so that they meet.
fn changes() -> impl Strategy<Value = Vec<Change>> {
    let paths = prop::sample::select(vec!["/a", "/a/b", "/a/b/c", "/a-b", "/a/s", "/d/e", "/a0"]);
    let values = prop::sample::select(vec!["", "x", "yy"]);
    let modes = prop::sample::select(vec![
        CreateMode::Persistent,
        CreateMode::Ephemeral,
        CreateMode::PersistentSequential,
        CreateMode::EphemeralSequential,
    ]);
    let version = prop::option::of((0..3_u32).prop_map(Version));
    let change =
        (0..6_u8, paths, values, modes, version).prop_map(|(kind, text, value, mode, version)| {
            let path = path(text);
            let value = Bytes::from_static(value.as_bytes());
            match kind {
                0 => Change::Create { path, value, mode },
                1 | 2 => Change::Put {
                    path,
                    value,
                    expected: version.map_or(Expected::Any, Expected::Version),
                },
                3 | 4 => Change::Delete {
                    path,
                    expected: version,
                },
                _ => Change::DeleteRecursive { path },
            }
        });
    prop::collection::vec(change, 1..60)
}

/// The rules as they are told in the contract, without any regard to cost.
#[derive(Default)]
struct Model {
    nodes: BTreeMap<String, (Bytes, u32, bool)>,
    made: BTreeMap<String, u64>,
}

fn above(path: &str) -> String {
    match path.rsplit_once('/') {
        Some(("", _)) | None => "/".to_owned(),
        Some((above, _)) => above.to_owned(),
    }
}

impl Model {
    fn is_below(path: &str, top: &str) -> bool {
        path.starts_with(&format!("{top}/"))
    }

    fn has_below(&self, top: &str) -> bool {
        self.nodes.keys().any(|path| Self::is_below(path, top))
    }

    /// Returns whether it succeeds.
    fn change(&mut self, change: &Change) -> bool {
        match change {
            Change::Put {
                path,
                value,
                expected,
            } => match self.nodes.get_mut(path.as_str()) {
                Some((old, version, _)) => {
                    let fits = match expected {
                        Expected::Any => true,
                        Expected::Absent => false,
                        Expected::Version(expected) => expected.0 == *version,
                    };
                    if fits {
                        *old = value.clone();
                        *version += 1;
                    }
                    fits
                }
                None => {
                    !matches!(expected, Expected::Version(_))
                        && self.make(path.as_str(), value, false)
                }
            },
            Change::Create { path, value, mode } => {
                let mut name = path.to_string();
                if mode.is_sequential() {
                    let made = self.made.get(&above(&name)).copied().unwrap_or(0);
                    name = format!("{name}{made:010}");
                }
                !self.nodes.contains_key(&name) && self.make(&name, value, mode.is_ephemeral())
            }
            Change::Delete { path, expected } => {
                let text = path.as_str();
                let fits = self.nodes.get(text).is_some_and(|(_, version, _)| {
                    expected.is_none_or(|expected| expected.0 == *version)
                });
                let goes = fits && !self.has_below(text);
                if goes {
                    self.forget(text);
                }
                goes
            }
            Change::DeleteRecursive { path } => {
                let text = path.as_str();
                let doomed: Vec<String> = self
                    .nodes
                    .keys()
                    .filter(|node| *node == text || Self::is_below(node, text))
                    .cloned()
                    .collect();
                doomed.iter().for_each(|node| self.forget(node));
                true
            }
            Change::EndSession => false,
        }
    }

    fn make(&mut self, path: &str, value: &Bytes, ephemeral: bool) -> bool {
        let parent = above(path);
        if parent != "/" {
            match self.nodes.get(&parent) {
                Some((_, _, true)) => return false,
                Some(_) => {}
                None => {
                    if !self.make(&parent, &Bytes::new(), false) {
                        return false;
                    }
                }
            }
        }
        *self.made.entry(parent).or_default() += 1;
        self.nodes
            .insert(path.to_owned(), (value.clone(), 0, ephemeral));
        true
    }

    fn forget(&mut self, path: &str) {
        self.nodes.remove(path);
        self.made.remove(path);
    }

    fn children(&self, top: &str) -> Vec<String> {
        let prefix = format!("{}/", top.trim_end_matches('/'));
        let mut names: Vec<String> = self
            .nodes
            .keys()
            .filter_map(|path| path.strip_prefix(&prefix))
            .filter(|rest| !rest.contains('/'))
            .map(str::to_owned)
            .collect();
        names.sort();
        names
    }

    fn restart(&mut self) {
        self.nodes.retain(|_, (_, _, ephemeral)| !*ephemeral);
    }

    fn compare(&self, state: &mut State) {
        let ask = |state: &mut State, request| -> Outcome {
            let input = Input::Request {
                id: RequestId(0),
                request,
                now: 9,
            };
            match state.step(input).pop() {
                Some(Effect::Reply(_, outcome)) => outcome,
                other => panic!("no reply but {other:?}"),
            }
        };
        let mut names = vec!["/".to_owned()];
        names.extend(self.nodes.keys().cloned());
        for name in names {
            let children = ask(state, Request::Children(path(&name)));
            assert_eq!(
                children,
                Ok(Reply::Children(self.children(&name))),
                "{name}"
            );
            if let Some((value, version, ephemeral)) = self.nodes.get(&name) {
                let Ok(Reply::Node(Some(node))) = ask(state, Request::Get(path(&name))) else {
                    panic!("{name} is missing");
                };
                let owner = if *ephemeral {
                    Owner::ThisSession
                } else {
                    Owner::Nobody
                };
                assert_eq!(
                    (&node.value, node.stat.version.0, node.stat.owner),
                    (value, *version, owner),
                    "{name}"
                );
            }
        }
    }
}

/// What one who only listens makes of the events.
fn listen(seen: &mut BTreeMap<String, u32>, events: &[Event]) {
    for event in events {
        match event {
            Event::Created(path) => assert_eq!(seen.insert(path.to_string(), 0), None),
            Event::Modified(path) => *seen.get_mut(path.as_str()).expect("made before") += 1,
            Event::Deleted(path) => assert!(seen.remove(path.as_str()).is_some()),
            Event::ChildrenChanged(_) | Event::Lagged => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Against the model: what succeeds, what is there, what watches are told, and what is there after a restart; and any beginning of
    /// what a change does to keys leaves a store.
    #[test]
    fn keeps_what_the_model_keeps(changes in changes(), cut in any::<prop::sample::Index>()) {
        let mut model = Model::default();
        let mut state = State::recover([]).expect("empty");
        let (mut log, mut seen) = (Vec::new(), BTreeMap::new());
        for change in &changes {
            let expected = model.change(change);
            let asked = Request::Change(change.clone());
            let mut effects = request(&mut state, 1, asked, &mut log);
            let upto = u64::try_from(log.len()).expect("few");
            effects.extend(state.step(Input::Progress(LogProgress::Durable(upto))));
            let mut succeeded = None;
            for effect in &effects {
                match effect {
                    Effect::Tell(events) => listen(&mut seen, events),
                    Effect::Reply(_, outcome) => succeeded = Some(outcome.is_ok()),
                    other => panic!("unexpected {other:?}"),
                }
            }
            prop_assert_eq!(succeeded, Some(expected), "{:?}", change);
            model.compare(&mut state);
            let versions: BTreeMap<_, _> = model.nodes.iter().map(|(path, node)| (path.clone(), node.1)).collect();
            prop_assert_eq!(&seen, &versions);
        }
        let log = log.concat();
        let mut recovered = State::recover(pairs(&log)).expect("its own");
        model.restart();
        model.compare(&mut recovered);
        State::recover(pairs(&log[..cut.index(log.len() + 1)])).expect("a beginning");
    }
}
