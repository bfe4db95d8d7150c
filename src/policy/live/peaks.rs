//! Following the load by peak tables.

use super::LiveLegs;
use super::link::PeakTable;
use super::set::{LegSet, SetLeg};
use crate::sync::notify;
use crate::sync::wake::PanicCollector;
use crate::time::Instant;

impl LiveLegs {
    /// Puts the numbers of peak tables in force that the load has moved to, unless legs are being changed: who does that
    /// rings when the turn is free, and whoever waits looks again.
    #[inline]
    pub(super) fn follow_peaks(&self, set: &LegSet, now: Instant) {
        if set.peaks && set.legs().iter().any(|leg| is_stale(leg, now)) {
            self.follow_peaks_slow(set, now);
        }
    }

    #[cold]
    fn follow_peaks_slow(&self, set: &LegSet, now: Instant) {
        let mut panics = PanicCollector::default();
        notify::defer(|| {
            let Some(turn) = self.turn.try_lock() else { return };
            // Another version has come: its numbers are right already.
            if std::ptr::eq(self.in_force().1, set) {
                self.follow_all(set, now, &mut panics);
            }
            drop(turn);
            // The use of a leg falls when its limit is raised; and somebody may have found the turn taken.
            self.notify.notify_all();
        });
        panics.end();
    }

    /// The same for whoever has the turn.
    pub(super) fn follow_all(&self, set: &LegSet, now: Instant, panics: &mut PanicCollector) {
        for leg in set.legs().iter().filter(|leg| is_stale(leg, now)) {
            if let Some(table) = &leg.peak {
                let rule = table.advance(now);
                panics.run(|| leg.node.retune(rule, PeakTable::crossing(rule)));
            }
        }
    }
}

fn is_stale(leg: &SetLeg, now: Instant) -> bool {
    leg.peak.as_ref().is_some_and(|table| table.is_stale(now))
}
