//! The limits that can have been in force.

use crate::rig::history::Event;
use crate::rig::instant::Nanos;

/// The limits of a run, in the order in which they were set: one after the other.
pub(super) struct Limits(Vec<(Nanos, Nanos, u64)>);

impl Limits {
    pub(super) fn of(events: &[Event]) -> Self {
        let mut limits: Vec<_> = events
            .iter()
            .filter_map(|event| match event {
                Event::Limit { limit, sent, done, .. } => Some((*sent, *done, *limit)),
                _ => None,
            })
            .collect();
        limits.sort_unstable();
        Self(limits)
    }

    /// The greatest limit that can have been in force at an instant from `from` to `to`; zero without one.
    pub(super) fn greatest(&self, from: Nanos, to: Nanos) -> u64 {
        let next = self.0.iter().skip(1).map(|&(_, done, _)| done).chain([Nanos::MAX]);
        let possible = self.0.iter().zip(next);
        let possible = possible.filter(|&(&(sent, _, _), over)| sent <= to && over >= from);
        possible.map(|(&(_, _, limit), _)| limit).max().unwrap_or(0)
    }

    /// The limit that was last set before `at`.
    pub(super) fn at(&self, at: Nanos) -> u64 {
        self.0
            .iter()
            .rev()
            .find(|&&(sent, _, _)| sent <= at)
            .map_or(0, |&(_, _, limit)| limit)
    }
}
