//! For how long this process has known servers to be what they are.
//!
//! A server that takes over from another one begins a new history, with an id of its own, and says nowhere when that was. But
//! whoever has seen the id knows that it was before.

use parking_lot::Mutex;
use std::time::Instant;

/// How many are remembered: one for each server of a cluster, and a few that were.
const MOST: usize = 32;

/// The histories of servers that have been seen, and when each was first.
#[derive(Default)]
pub(super) struct ReplicationIds(Mutex<Vec<(Box<str>, Instant)>>);

impl ReplicationIds {
    pub(super) fn note(&self, replication_id: &str) {
        let mut seen = self.0.lock();
        if seen.iter().any(|(known, _)| **known == *replication_id) {
            return;
        }
        if seen.len() == MOST {
            seen.remove(0);
        }
        seen.push((replication_id.into(), Instant::now()));
    }

    /// What the script for permits is told: each id, and for how many microseconds it has been known, at least.
    pub(super) fn known(&self) -> String {
        let seen = self.0.lock();
        let known = seen.iter().map(|(replication_id, since)| {
            // Clocks run apart.
            let micros = since.elapsed().as_micros() / 101 * 100;
            format!("{replication_id}:{micros}")
        });
        known.collect::<Vec<_>>().join(" ")
    }
}
