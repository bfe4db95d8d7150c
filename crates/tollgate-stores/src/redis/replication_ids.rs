//! The replication ids that this process has seen, and for how long it has known them.
//!
//! A server that takes over begins a new history, with an id of its own, and does not say when that was. But a process that has
//! seen the id knows that it was before. Outside of a cluster the first ask also notes it at the server, for all processes.

use parking_lot::Mutex;
use std::time::Instant;

/// How many are remembered: one for each server of a cluster, and a few former ones.
const MOST: usize = 32;

/// The ids, each with the instant at which it was first seen.
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

    /// The argument of the script for permits: each id, and for how many microseconds it has been known, at least.
    pub(super) fn known(&self) -> String {
        let seen = self.0.lock();
        let known = seen.iter().map(|(replication_id, since)| {
            // Clocks drift apart.
            let micros = since.elapsed().as_micros() / 101 * 100;
            format!("{replication_id}:{micros}")
        });
        known.collect::<Vec<_>>().join(" ")
    }
}
