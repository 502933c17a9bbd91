//! What every metadata store keeps, M1 to M13 of `src/metadata/mod.rs`, on every engine: memory, embedded (over a log in memory, over the journal
//! of a data directory, and over one on a simulated disk), and ZooKeeper itself, so that the two of ours answer as the store does that Apache Pulsar runs on.
//!
//! ZooKeeper needs a JDK, and in `PULSEGATE_PULSAR_JARS` the folder with Pulsar's jars; it is skipped, with a line on standard
//! error, where the variable is not set.

mod clauses;
#[cfg(feature = "zookeeper")]
mod differential;
mod engines;
#[cfg(feature = "zookeeper")]
mod zookeeper;

use engines::Engine;
use pulsegate::testing::sim_disk::SimDisk;

/// Runs on a runtime whose time is its own.
fn on_paused_time(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("runtime");
    tokio::task::LocalSet::new().block_on(&runtime, test);
}

/// One test per clause and engine.
macro_rules! on_every_engine {
    ($($clause:ident)+) => {
        mod memory {
            $(
                #[tokio::test]
                async fn $clause() {
                    super::clauses::$clause(&super::Engine::memory()).await;
                }
            )+
        }

        mod embedded {
            $(
                #[tokio::test]
                async fn $clause() {
                    super::clauses::$clause(&super::Engine::embedded()).await;
                }
            )+
        }

        mod directory {
            $(
                #[tokio::test]
                async fn $clause() {
                    super::clauses::$clause(&super::Engine::directory()).await;
                }
            )+
        }

        mod simulated {
            $(
                #[test]
                fn $clause() {
                    super::on_paused_time(async {
                        let disk = super::SimDisk::new(1);
                        // One of the clauses has long values.
                        let engine = super::Engine::simulated(&disk, 4 << 20).await;
                        super::clauses::$clause(&engine).await;
                    });
                }
            )+
        }

        /// One server for all clauses: each keeps below a node of its own.
        #[cfg(feature = "zookeeper")]
        #[tokio::test]
        async fn on_zookeeper() {
            let Some(engine) = Engine::zookeeper().await else {
                return;
            };
            $(
                println!("{}", stringify!($clause));
                clauses::$clause(&engine).await;
            )+
            for seed in 0..24 {
                let ours = if seed % 2 == 0 { Engine::memory() } else { Engine::embedded() };
                differential::answers_alike(&engine, &ours, seed).await;
            }
        }
    };
}

on_every_engine! {
    m1_versions_begin_at_0_and_grow_by_1
    m2_a_put_changes_only_the_version_it_expects
    m2_one_of_several_puts_of_one_version_succeeds
    m3_what_exists_is_not_made_again
    m4_missing_nodes_above_are_made
    m5_children_are_sorted_names
    m6_a_refused_delete_changes_nothing
    m7_a_recursive_delete_leaves_nothing_below_and_all_beside
    m7_the_root_stays
    m8_sequential_numbers_count_the_nodes_made
    m9_ephemeral_nodes_end_with_their_session
    m9_nothing_can_be_below_an_ephemeral_node
    m10_a_session_sees_changes_of_others_after_a_sync
    m11_a_watch_on_a_node_is_told_of_it_and_its_children
    m11_a_watch_on_a_subtree_is_told_of_all_below
    m12_a_session_that_ends_says_so
    empty_and_large_values_come_back
}

#[tokio::test]
async fn m13_what_was_answered_is_there_after_a_restart() {
    clauses::m13_what_was_answered_is_there_after_a_restart().await;
}

#[tokio::test]
async fn m13_what_was_answered_is_there_after_a_restart_of_a_data_directory() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = engines::open(folder.path());
    let before = clauses::m13_before(&*store.metadata()).await;
    store.close().await;
    let again = engines::open(folder.path());
    clauses::m13_after(&*again.metadata(), before).await;
    again.close().await;
}

#[test]
fn m13_what_was_answered_is_there_after_a_power_cut() {
    on_paused_time(async {
        for seed in 0..20 {
            let disk = SimDisk::new(seed);
            let engine = Engine::simulated(&disk, 32 << 10).await;
            let before = clauses::m13_before(engine.connect().await.store()).await;
            let again = Engine::simulated(&disk.after_cut(seed), 32 << 10).await;
            clauses::m13_after(again.connect().await.store(), before).await;
        }
    });
}
