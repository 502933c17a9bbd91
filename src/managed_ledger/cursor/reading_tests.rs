//! Reading, seeking, skipping and finding against lists of entries.

use std::collections::BTreeSet;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use proptest::prelude::*;

use super::*;
use crate::managed_ledger::{
    EntryRange, LogEntry, LogRead, LogView, ReadBudget, ReadError, ReadFuture,
};

fn ledgers() -> impl Strategy<Value = (Vec<(i64, i64)>, i64)> {
    let ledger = (1..4_i64, prop_oneof![Just(0), 0..9_i64]);
    (prop::collection::vec(ledger, 1..6), 0..6_i64).prop_map(|(ledgers, first)| {
        let mut id = 0;
        let ledgers: Vec<(i64, i64)> = ledgers
            .into_iter()
            .map(|(more, entries)| {
                id += more;
                (id, entries)
            })
            .collect();
        let first = first.min(ledgers[0].1);
        (ledgers, first)
    })
}

fn entries((ledgers, first): &(Vec<(i64, i64)>, i64)) -> Vec<Position> {
    let place = ledgers.iter().enumerate();
    place
        .flat_map(|(place, (ledger, entries))| {
            let from = if place == 0 { *first } else { 0 };
            (from..*entries).map(|entry| Position::new(*ledger, entry))
        })
        .collect()
}

fn view(log: &(Vec<(i64, i64)>, i64)) -> LogView {
    let extent = LogExtent::new(log.0.clone()).with_first_entry(log.1);
    let end = extent.last().or(extent.before_first()).expect("ledgers");
    LogView::new(extent, end, None)
}

fn flat(runs: impl IntoIterator<Item = EntryRange>) -> Vec<Position> {
    runs.into_iter()
        .flat_map(|run| {
            run.entries
                .map(move |entry| Position::new(run.ledger_id, entry))
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn reads_what_is_not_acknowledged_in_order_and_skips_by_it(
        log in ledgers(), acknowledged in prop::collection::vec(any::<prop::sample::Index>(), 0..30),
        from in any::<prop::sample::Index>(), limit in 0..20_u64, runs in 1..9_usize,
    ) {
        let (view, all) = (view(&log), entries(&log));
        let extent = view.extent();
        let mut state = CursorState::new(StartAt::Earliest.mark_delete(&view));
        let mut left: BTreeSet<Position> = all.iter().copied().collect();
        prop_assert_eq!(state.backlog(extent), i64::try_from(all.len()).expect("few"));
        for place in acknowledged.iter().filter(|_| !all.is_empty()) {
            let position = *place.get(&all);
            state.acknowledge(position, extent);
            left.remove(&position);
        }
        let whole: Vec<Position> = left.iter().copied().collect();
        prop_assert_eq!(flat(state.unacknowledged_runs(state.mark_delete(), extent)), whole.clone());
        let mut read = ReadPosition::of(&state);
        let wanted = flat(read.next_runs(&state, extent, limit, runs));
        prop_assert!(wanted.len() as u64 <= limit && whole.starts_with(&wanted));
        prop_assert_eq!(flat(read.next_runs(&state, extent, limit, 99)).len(), whole.len().min(usize::try_from(limit).expect("few")));
        if !all.is_empty() {
            let position = *from.get(&all);
            read.advance(position);
            let behind = whole.iter().copied().filter(|other| *other > position.max(state.mark_delete()));
            prop_assert_eq!(flat(read.next_runs(&state, extent, 999, 999)), behind.clone().collect::<Vec<_>>());
            prop_assert_eq!(read.has_more(&state, extent), behind.count() > 0);
            read.rewind(&state);
            prop_assert_eq!(flat(read.next_runs(&state, extent, 999, 999)), whole.clone());
        }
        let nth = |place: u64| state.nth_unacknowledged(place, extent);
        let places = (1..=whole.len() as u64).filter_map(nth).collect::<Vec<_>>();
        prop_assert_eq!(&places, &whole);
        prop_assert_eq!((nth(0), nth(whole.len() as u64 + 1), nth(u64::MAX)), (None, None, None));
        let mut skipped = state.clone();
        skipped.skip(limit, extent);
        let rest: Vec<Position> = whole.iter().copied().skip(usize::try_from(limit).expect("few")).collect();
        prop_assert_eq!(flat(skipped.unacknowledged_runs(skipped.mark_delete(), extent)), rest);
        state.clear_backlog(extent);
        prop_assert_eq!(state.backlog(extent), 0);
    }

    #[test]
    fn begins_where_it_is_told_to(log in ledgers(), ledger in -2..16_i64, entry in -1..12_i64) {
        let (view, all) = (view(&log), entries(&log));
        let position = Position::new(ledger, entry);
        let first = |start: StartAt| {
            let state = CursorState::new(start.mark_delete(&view));
            state.next_unacknowledged(state.mark_delete(), view.extent())
        };
        prop_assert_eq!(first(StartAt::Earliest), all.first().copied());
        prop_assert_eq!(first(StartAt::Latest), None);
        prop_assert_eq!(first(StartAt::At(position)), all.iter().copied().find(|other| *other >= position));
        prop_assert_eq!(first(StartAt::Behind(position)), all.iter().copied().find(|other| *other > position));
        // What `MessageId.earliest` and `MessageId.latest` are on the way from an admin client.
        prop_assert_eq!(first(StartAt::At(Position::new(-1, -1))), all.first().copied());
        prop_assert_eq!(first(StartAt::At(Position::new(i64::MAX, i64::MAX))), None);
    }

    /// The log may be trimmed before any of the reads.
    #[test]
    fn finds_the_last_entry_for_which_it_holds(
        log in ledgers(), behind in prop::option::of(any::<prop::sample::Index>()), holds in any::<prop::sample::Index>(),
        trims in prop::collection::vec(prop::option::of(0..9_usize), 0..8),
    ) {
        let all = entries(&log);
        if all.is_empty() {
            prop_assert_eq!(FindNewest::in_all(&view(&log)).next(view(&log).extent()), Find::Found(None));
            return Ok(());
        }
        let limit = holds.index(all.len() + 1);
        let read = Shrinking { log: parking_lot::Mutex::new(log.clone()), trims: parking_lot::Mutex::new(trims.clone()), all: all.clone(), reads: parking_lot::Mutex::new(0) };
        let floor = behind.map(|place| *place.get(&all));
        let find = match floor {
            Some(floor) => FindNewest::behind(floor, &view(&log)),
            None => FindNewest::in_all(&view(&log)),
        };
        let found = now(find_newest(find, || view(&read.log.lock()), &read, |entry| {
            all.iter().position(|other| *other == entry.position).expect("there") < limit
        })).expect("readable");
        let left = entries(&read.log.lock());
        let expected = |from: Option<Position>| {
            let matching = all.iter().take(limit).copied();
            matching.filter(|position| floor.is_none_or(|floor| *position > floor)).rfind(|position| from.is_none_or(|from| *position >= from))
        };
        let full = expected(None);
        if left.len() == all.len() {
            prop_assert_eq!(found, full);
        } else {
            // What was trimmed meanwhile may be the answer or not; what is left is found.
            prop_assert!(found == full || expected(left.first().copied()).is_none() || left.is_empty(), "{found:?} {full:?}");
            prop_assert!(found.is_none() || found <= full);
        }
        let bits = usize::BITS - all.len().leading_zeros();
        let gaps = u32::try_from(trims.len()).expect("few");
        prop_assert!(*read.reads.lock() <= bits + 2 + gaps, "{} reads of {}", read.reads.lock(), all.len());
    }
}

/// A log that is trimmed while it is read.
#[derive(Debug)]
struct Shrinking {
    log: parking_lot::Mutex<(Vec<(i64, i64)>, i64)>,
    /// How many entries go before each of the reads.
    trims: parking_lot::Mutex<Vec<Option<usize>>>,
    all: Vec<Position>,
    reads: parking_lot::Mutex<u32>,
}

impl LogRead for Shrinking {
    fn read<'a>(&'a self, ranges: &'a [EntryRange], _: ReadBudget) -> ReadFuture<'a> {
        *self.reads.lock() += 1;
        if let Some(Some(count)) = self.trims.lock().pop() {
            let left = entries(&self.log.lock());
            if let Some(first) = left.get(count) {
                let mut log = self.log.lock();
                log.0.retain(|(ledger, _)| *ledger >= first.ledger_id);
                log.1 = first.entry_id;
            }
        }
        let position = Position::new(ranges[0].ledger_id, ranges[0].entries.start);
        assert!(self.all.contains(&position), "{position} was never there");
        let there = entries(&self.log.lock()).contains(&position);
        let result = if there {
            Ok(vec![LogEntry {
                position,
                payload: bytes::Bytes::new(),
            }])
        } else {
            Err(ReadError::Trimmed(position))
        };
        Box::pin(std::future::ready(result))
    }

    fn read_cached(&self, _: &[EntryRange], _: ReadBudget, _: &mut Vec<LogEntry>) -> bool {
        false
    }
}

/// The output of a future that never waits.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it waits"),
    }
}
