//! Cursors in each of their forms against a set of what is not acknowledged, over crashes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;

use super::tests::{Store, id, on_runtime, stores};
use super::*;
use crate::managed_ledger::StartAt;

const MESSAGES: u32 = 3;

#[derive(Debug, Clone)]
enum Step {
    Acknowledge(usize),
    InBatch(usize, u8),
    Through(usize),
    Skip(u64),
    Seek(usize),
    SeekInto(usize, u8),
    SeekEnd,
    Append(i64),
    Roll(i64),
    Trim,
    Properties(i64),
    CursorProperties(i64),
    /// So many milliseconds pass.
    Flush(i64, bool),
    Progress,
    Settle,
    Rest,
    Crash,
    Close,
    Delete,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let place = || 0..60_usize;
    let step = prop_oneof![
        10 => place().prop_map(Step::Acknowledge),
        5 => (place(), 0..8_u8).prop_map(|(place, bits)| Step::InBatch(place, bits)),
        1 => place().prop_map(Step::Through),
        1 => (0..6_u64).prop_map(Step::Skip),
        1 => place().prop_map(Step::Seek),
        1 => (place(), 1..8_u8).prop_map(|(place, bits)| Step::SeekInto(place, bits)),
        1 => Just(Step::SeekEnd),
        3 => (1..9_i64).prop_map(Step::Append),
        1 => (1..4_i64).prop_map(Step::Roll),
        1 => Just(Step::Trim),
        1 => any::<i64>().prop_map(Step::Properties),
        1 => any::<i64>().prop_map(Step::CursorProperties),
        6 => (0..900_i64, any::<bool>()).prop_map(|(later, now)| Step::Flush(later, now)),
        3 => Just(Step::Progress),
        2 => Just(Step::Settle),
        2 => Just(Step::Rest),
        2 => Just(Step::Crash),
        1 => Just(Step::Close),
        1 => Just(Step::Delete),
    ];
    prop::collection::vec(step, 1..80)
}

/// What is there and what of it is not acknowledged, message by message.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Model {
    ledgers: BTreeMap<i64, i64>,
    unacknowledged: BTreeSet<(Position, u32)>,
    properties: BTreeMap<String, i64>,
    cursor_properties: BTreeMap<String, String>,
}

impl Model {
    fn new() -> Self {
        let mut model = Self {
            ledgers: BTreeMap::from([(3, 0)]),
            unacknowledged: BTreeSet::new(),
            properties: BTreeMap::new(),
            cursor_properties: BTreeMap::new(),
        };
        model.append(12);
        model
    }

    fn log(&self) -> LogExtent {
        LogExtent::new(self.ledgers.clone())
    }

    fn view(&self) -> LogView {
        let end = self.log().last().or(self.log().before_first());
        LogView::new(self.log(), end.expect("ledgers"), None)
    }

    fn entries(&self) -> Vec<Position> {
        let runs = self.ledgers.iter();
        runs.flat_map(|(ledger, entries)| (0..*entries).map(|entry| Position::new(*ledger, entry)))
            .collect()
    }

    fn at(&self, place: usize) -> Option<Position> {
        let entries = self.entries();
        entries.get(place % entries.len().max(1)).copied()
    }

    fn append(&mut self, count: i64) {
        let (ledger, entries) = self.ledgers.pop_last().expect("there is one");
        self.ledgers.insert(ledger, entries + count);
        for entry in entries..entries + count {
            let position = Position::new(ledger, entry);
            (0..MESSAGES).for_each(|message| _ = self.unacknowledged.insert((position, message)));
        }
    }

    fn seek(&mut self, to: Option<Position>, remaining: Option<u8>) {
        self.properties.clear();
        self.unacknowledged.clear();
        for position in self.entries() {
            if to.is_some_and(|to| position >= to) {
                let bits = remaining.filter(|_| Some(position) == to).unwrap_or(7);
                let messages = (0..MESSAGES).filter(|message| bits & (1 << message) != 0);
                self.unacknowledged
                    .extend(messages.map(|message| (position, message)));
            }
        }
    }

    /// What the log has lost is not to be acknowledged any more, whoever remembers it; what it got since is.
    fn with_log_of(&self, now: &Self) -> Self {
        let mut then = self.clone();
        then.ledgers.clone_from(&now.ledgers);
        then.unacknowledged
            .retain(|(position, _)| now.log().contains(*position));
        for position in now
            .entries()
            .into_iter()
            .filter(|position| !self.log().contains(*position))
        {
            (0..MESSAGES).for_each(|message| _ = then.unacknowledged.insert((position, message)));
        }
        then
    }

    fn of(cursor: &CursorState, log: &BTreeMap<i64, i64>) -> Self {
        let mut model = Self {
            ledgers: log.clone(),
            unacknowledged: BTreeSet::new(),
            properties: cursor.properties().clone(),
            cursor_properties: cursor.cursor_properties().clone(),
        };
        for position in model.entries() {
            let batch = cursor.batch(position);
            let messages = (0..MESSAGES).filter(|message| {
                !cursor.is_acknowledged(position)
                    && batch.is_none_or(|batch| batch.contains(*message))
            });
            let messages: Vec<u32> = messages.collect();
            model
                .unacknowledged
                .extend(messages.into_iter().map(|message| (position, message)));
        }
        model
    }
}

fn remaining(bits: u8) -> AckSet {
    AckSet::from_words([i64::from(bits)])
}

/// Applies a step to both; false when it is none that changes the state.
fn apply(step: &Step, model: &mut Model, cursor: &mut ManagedCursor) -> bool {
    let log = model.log();
    match *step {
        Step::Acknowledge(place) => {
            if let Some(position) = model.at(place) {
                model.unacknowledged.retain(|(other, _)| *other != position);
                cursor.acknowledge(position, &log).expect("works");
            }
        }
        Step::InBatch(place, bits) => {
            if let Some(position) = model.at(place) {
                model
                    .unacknowledged
                    .retain(|(other, message)| *other != position || bits & (1 << message) != 0);
                cursor
                    .acknowledge_in_batch(position, MESSAGES, &remaining(bits), &log)
                    .expect("works");
            }
        }
        Step::Through(place) => {
            if let Some(position) = model.at(place) {
                model.unacknowledged.retain(|(other, _)| *other > position);
                cursor.acknowledge_through(position, &log).expect("works");
            }
        }
        Step::Skip(entries) => {
            let left: BTreeSet<Position> = model.unacknowledged.iter().map(|(at, _)| *at).collect();
            let mut gone = left
                .into_iter()
                .take(usize::try_from(entries).expect("few"));
            if let Some(last) = gone.next_back() {
                model.unacknowledged.retain(|(other, _)| *other > last);
            }
            cursor.skip(entries, &log).expect("works");
        }
        Step::Seek(place) => {
            if let Some(position) = model.at(place) {
                model.seek(Some(position), None);
                let to = StartAt::At(position).mark_delete(&model.view());
                cursor.reset(to, None).expect("works");
            }
        }
        Step::SeekInto(place, bits) => {
            if let Some(position) = model.at(place) {
                model.seek(Some(position), Some(bits));
                let to = StartAt::At(position).mark_delete(&model.view());
                cursor
                    .reset(to, Some((position, remaining(bits))))
                    .expect("works");
            }
        }
        Step::SeekEnd => {
            model.seek(None, None);
            let to = StartAt::Latest.mark_delete(&model.view());
            cursor.reset(to, None).expect("works");
        }
        Step::Append(count) => {
            model.append(count);
            cursor.log_changed(&model.log()).expect("works");
        }
        Step::Roll(higher) => {
            let (last, _) = model.ledgers.last_key_value().expect("one");
            model.ledgers.insert(last + higher, 0);
            cursor.log_changed(&model.log()).expect("works");
        }
        Step::Trim => {
            if model.ledgers.len() > 1 {
                let (gone, _) = model.ledgers.pop_first().expect("two");
                model
                    .unacknowledged
                    .retain(|(position, _)| position.ledger_id != gone);
                cursor.log_changed(&model.log()).expect("works");
            }
        }
        Step::Properties(value) => {
            model.properties = BTreeMap::from([(format!("p{}", value % 3), value)]);
            let properties = model.properties.clone();
            cursor.set_properties(properties).expect("works");
        }
        Step::CursorProperties(value) => {
            let name = format!("c{}", value % 3);
            model.cursor_properties = BTreeMap::from([(name, value.to_string())]);
            let properties = model.cursor_properties.clone();
            cursor.set_cursor_properties(properties).expect("works");
        }
        _ => return false,
    }
    true
}

/// All that the cursor was, by how often it had been changed, since it was known to be durable.
type History = Vec<(u64, Model)>;

async fn run(store: &Store, steps: &[Step]) {
    let mut model = Model::new();
    let mut cursor = store.create(Position::before(3)).await;
    let mut history: History = vec![(0, model.clone())];
    let mut now = 10;
    for step in steps {
        if apply(step, &mut model, &mut cursor) {
            history.push((cursor.changed(), model.clone()));
        }
        match step {
            Step::Flush(later, urgent) => {
                now += later;
                let urgency = if *urgent { Flush::Now } else { Flush::WhenDue };
                cursor.flush(now, urgency).expect("works");
            }
            Step::Progress => {
                let wait = tokio::time::timeout(Duration::ZERO, cursor.progressed()).await;
                wait.map_or(Ok(0), |progressed| progressed).expect("works");
            }
            Step::Settle => {
                cursor.settled(now).await.expect("works");
                assert!(!cursor.is_dirty());
            }
            Step::Rest => {
                cursor.rest(now).expect("works");
            }
            Step::Crash => {
                let durable = cursor.durable();
                drop(cursor);
                cursor = store.open(&model.log()).await;
                let found = Model::of(cursor.state(), &model.ledgers);
                let mut possible = history.iter().filter(|(changed, _)| *changed >= durable);
                // The last one that is known to be durable, or any later one.
                let known = history.iter().rfind(|(changed, _)| *changed <= durable);
                let fits = |then: &Model| then.with_log_of(&model) == found;
                assert!(
                    known.is_some_and(|(_, then)| fits(then))
                        || possible.any(|(_, then)| fits(then))
                        || is_between(&history, durable, &model, &found),
                    "{found:?} is none of what it was since {durable}: {history:?}"
                );
                model = found;
                history = vec![(0, model.clone())];
            }
            Step::Close => {
                cursor.close(now).await.expect("closed");
                cursor = store.open(&model.log()).await;
                assert_eq!(Model::of(cursor.state(), &model.ledgers), model);
                history = vec![(0, model.clone())];
            }
            Step::Delete => {
                drop(cursor);
                ManagedCursor::delete(&store.storage, &id())
                    .await
                    .expect("deleted");
                ManagedCursor::delete(&store.storage, &id())
                    .await
                    .expect("again");
                let mark_delete = StartAt::Earliest.mark_delete(&model.view());
                cursor = store.create(mark_delete).await;
                model.seek(model.at(0), None);
                model.cursor_properties.clear();
                history = vec![(0, model.clone())];
            }
            _ => {}
        }
        let found = Model::of(cursor.state(), &model.ledgers);
        assert_eq!(found, model, "after {step:?}");
    }
}

/// Properties of the cursor are written apart from the position in a cursor ledger's form: one may be later than the other.
fn is_between(history: &History, durable: u64, now: &Model, found: &Model) -> bool {
    let known = history.iter().rposition(|(changed, _)| *changed <= durable);
    let later = history.get(known.unwrap_or(0)..).unwrap_or_default();
    let position = later.iter().any(|(_, then)| {
        let then = then.with_log_of(now);
        then.unacknowledged == found.unacknowledged && then.properties == found.properties
    });
    let properties = later
        .iter()
        .any(|(_, then)| then.cursor_properties == found.cursor_properties);
    position && properties
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn knows_what_a_naive_model_knows_and_never_less_after_a_crash(steps in steps()) {
        for store in stores() {
            on_runtime(run(&store, &steps));
        }
    }
}
