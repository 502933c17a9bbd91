//! `--repair`: the only thing that writes.

use std::path::Path;

use super::in_directory;
use super::report::{LostLedgerShown, RepairShown};
use crate::disk::RealDisk;
use crate::journal::audit::hold;
use crate::journal::repair::{self, Repair};
use crate::journal::superblock::Superblock;
use crate::journal::{JournalError, Table};
use crate::ledger::CursorName;
use crate::ledger::embedded::LedgerReplica;
use crate::metadata::EmbeddedMetadata;

/// Makes the store start again, and tells at what price.
pub(super) fn repair(
    directory: &Path,
    superblock: &Superblock,
) -> Result<Vec<RepairShown>, JournalError> {
    let disk = RealDisk::open(directory)?;
    let _held = hold(&disk)?;
    let repairs = repair::repair(&disk, superblock, LedgerReplica::detached)?;
    Ok(repairs
        .into_iter()
        .map(|repair| shown(directory, repair))
        .collect())
}

fn shown(directory: &Path, repair: Repair) -> RepairShown {
    let lost = repair.lost;
    let mut cursors = Vec::new();
    let mut metadata = Vec::new();
    for (table, key) in &lost.changes {
        if *table == Table::Cursors.number() {
            cursors.push(match CursorName::of_key(key) {
                Some(name) => format!("{} {}", name.topic, name.cursor),
                None => key.escape_ascii().to_string(),
            });
        } else {
            metadata.push(match EmbeddedMetadata::path_of_key(key) {
                Some(path) => path.to_string(),
                None => key.escape_ascii().to_string(),
            });
        }
    }
    metadata.dedup();
    let perhaps = lost
        .perhaps
        .into_iter()
        .filter(|ledger| !lost.ledgers.contains_key(ledger))
        .collect();
    RepairShown {
        damage: repair.damage,
        done: repair.done,
        kept: repair
            .kept
            .into_iter()
            .map(|file| in_directory(directory, file))
            .collect(),
        lost_ledgers: lost
            .ledgers
            .into_iter()
            .map(|(ledger, lost)| LostLedgerShown {
                ledger,
                entries: lost.entries,
                count: lost.count,
                created: lost.created,
                ended: lost.ended,
            })
            .collect(),
        perhaps,
        cursors,
        metadata,
    }
}
