//! What the admissions of a key have reserved of windows, as this process and the store know it.
//!
//! An admission *reserves* its units. What it *spends* of them counts as used, also when this process dies; the rest comes back at the
//! store when the reservation ends, unless a step renews it. Each step reports the changes since the last one, by the instant at which the
//! units were taken.
//!
//! ```text
//!   granted --> open --spend, finish--> used (reported once)
//!                 '--give back, cancel--> gone
//! ```
//! Invariants: `stored` is what the store has open until `until`, as far as that is known. An entry stays until the store knows that nothing of it is open.

use super::legs::Legs;
use crate::remote::step::{LegUnits, Reserved};
use crate::time::Instant;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What one admission counts for, of each leg.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Charge {
    /// All its units.
    pub(super) units: LegUnits,
    /// Those of them that are used for certain.
    pub(super) spent: LegUnits,
}

impl Charge {
    /// A new one. Calls are used at once: what is learnt later is their cost.
    pub(super) fn new(legs: &Legs, units: &LegUnits) -> Self {
        let mut spent = LegUnits::default();
        for leg in (0..units.len()).filter(|&leg| legs.is_window(leg) && legs.cost(leg).is_none()) {
            spent[leg] = units[leg];
        }
        Self { units: *units, spent }
    }
}

/// The units that were taken at one instant.
#[derive(Debug)]
struct Entry {
    legs: Arc<Legs>,
    stored: LegUnits,
    until: u64,
    open: LegUnits,
    /// To be reported.
    used: LegUnits,
    /// A step reports it.
    is_under_way: bool,
    /// To be reported without delay.
    is_urgent: bool,
    renew_at: Option<Instant>,
}

impl Entry {
    fn is_changed(&self) -> bool {
        self.open != self.stored || self.used != LegUnits::default()
    }

    fn is_over(&self) -> bool {
        let all = [&self.open, &self.stored, &self.used];
        !self.is_under_way && all.iter().all(|units| **units == LegUnits::default())
    }

    fn is_due(&self, now: Instant) -> bool {
        self.is_urgent || self.renew_at.is_some_and(|at| at <= now)
    }
}

/// The reservations of one key, by the instant of the store at which they were taken.
#[derive(Debug, Default)]
pub(super) struct Reservations(BTreeMap<u64, Vec<Entry>>);

impl Reservations {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn entry(&mut self, at: u64, legs: &Arc<Legs>) -> &mut Entry {
        let entries = self.0.entry(at).or_default();
        let place = entries.iter().position(|entry| entry.legs.is(legs));
        let place = place.unwrap_or_else(|| {
            entries.push(Entry {
                legs: Arc::clone(legs),
                stored: LegUnits::default(),
                until: 0,
                open: LegUnits::default(),
                used: LegUnits::default(),
                is_under_way: false,
                is_urgent: false,
                renew_at: None,
            });
            entries.len() - 1
        });
        &mut entries[place]
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.0.values().flatten()
    }

    fn forget_what_is_over(&mut self) {
        self.0.retain(|_, entries| {
            entries.retain(|entry| !entry.is_over());
            !entries.is_empty()
        });
    }

    /// An admission at `at` has reserved `units`, until then unless they are renewed.
    pub(super) fn add(&mut self, at: u64, legs: &Arc<Legs>, units: &LegUnits, until: u64, renew_at: Instant) {
        if !(0..units.len()).any(|leg| units[leg] > 0 && legs.is_window(leg)) {
            return;
        }
        let charge = Charge::new(legs, units);
        let entry = self.entry(at, legs);
        for leg in (0..units.len()).filter(|&leg| legs.is_window(leg)) {
            entry.stored[leg] += units[leg];
            entry.open[leg] += units[leg] - charge.spent[leg];
            entry.used[leg] += charge.spent[leg];
        }
        entry.until = until;
        entry.renew_at.get_or_insert(renew_at);
    }

    /// A charge of windows has changed. What is not used after all, and was reported, is returned: a correction takes it back.
    pub(super) fn change(
        &mut self,
        at: u64,
        legs: &Arc<Legs>,
        before: &Charge,
        after: &Charge,
        is_urgent: bool,
    ) -> LegUnits {
        let mut reported = LegUnits::default();
        let entry = self.entry(at, legs);
        for leg in (0..reported.len()).filter(|&leg| legs.is_window(leg)) {
            let open = |charge: &Charge| charge.units[leg].saturating_sub(charge.spent[leg]);
            entry.open[leg] = (entry.open[leg] + open(after)).saturating_sub(open(before));
            let used = entry.used[leg] + after.spent[leg];
            reported[leg] = before.spent[leg].saturating_sub(used);
            entry.used[leg] = used.saturating_sub(before.spent[leg]);
        }
        entry.is_urgent |= is_urgent && entry.is_changed();
        if entry.is_over() {
            self.forget_what_is_over();
        }
        reported
    }

    /// The legs of one that is to be reported now.
    pub(super) fn due(&self, now: Instant) -> Option<&Arc<Legs>> {
        self.entries().find(|entry| entry.is_due(now)).map(|entry| &entry.legs)
    }

    /// When one is to be reported without another reason.
    pub(super) fn due_at(&self) -> Option<Instant> {
        self.entries().filter_map(|entry| entry.renew_at).min()
    }

    /// What a step at these legs reports: all changes, and with a renewal that is due all renewals, as far as there is room.
    pub(super) fn report(&mut self, legs: &Arc<Legs>, now: Instant, most: usize) -> Vec<Reserved> {
        let is_renewed = |entry: &Entry| entry.renew_at.is_some_and(|at| at <= now);
        let renews = self.entries().any(|entry| entry.legs.is(legs) && is_renewed(entry));
        let mut report = Vec::new();
        // First those without which the step would not be.
        for only_due in [true, false] {
            let all = self.0.iter_mut();
            let all = all.flat_map(|(at, entries)| entries.iter_mut().map(|entry| (*at, entry)));
            for (at, entry) in all.filter(|(_, entry)| entry.legs.is(legs) && !entry.is_under_way) {
                let is_wanted = match only_due {
                    true => entry.is_due(now),
                    false => renews || entry.is_changed(),
                };
                if report.len() >= most || !is_wanted {
                    continue;
                }
                report.push(Reserved {
                    at,
                    until: entry.until,
                    before: entry.stored,
                    after: entry.open,
                    used: std::mem::take(&mut entry.used),
                });
                (entry.is_under_way, entry.is_urgent, entry.renew_at) = (true, false, None);
            }
        }
        report
    }

    /// The store has carried out a report, and has reserved until then what goes on.
    pub(super) fn on_reply(&mut self, legs: &Arc<Legs>, report: &[Reserved], until: u64, renew_at: Instant) {
        for reported in report {
            let entry = self.entry(reported.at, legs);
            (entry.stored, entry.until, entry.is_under_way) = (reported.after, until, false);
            entry.renew_at = Some(renew_at);
        }
        self.forget_what_is_over();
    }

    /// Whether a report was carried out is unknown. What is open is reserved anew, and what was used is reported again: it may count twice, and
    /// is not lost.
    pub(super) fn on_given_up(&mut self, legs: &Arc<Legs>, report: &[Reserved]) {
        for reported in report {
            let entry = self.entry(reported.at, legs);
            (entry.stored, entry.until, entry.is_under_way) = (LegUnits::default(), 0, false);
            entry.used.iter_mut().zip(reported.used).for_each(|(all, n)| *all += n);
            entry.is_urgent = entry.is_changed();
        }
        self.forget_what_is_over();
    }

    /// True if a change is in no report.
    pub(super) fn has_unreported(&self) -> bool {
        self.entries().any(|entry| entry.is_changed() && !entry.is_under_way)
    }

    /// All that is open counts as used.
    pub(super) fn use_all(&mut self) {
        for entry in self.0.values_mut().flatten() {
            let open = std::mem::take(&mut entry.open);
            entry.used.iter_mut().zip(open).for_each(|(used, n)| *used += n);
        }
    }

    /// All changes are to be reported without delay.
    pub(super) fn hurry(&mut self) {
        for entry in self.0.values_mut().flatten() {
            entry.is_urgent |= entry.is_changed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::ask::Cost;
    use crate::remote::keyed::limits::RemoteLeg;
    use crate::remote::step::KeyLeg;
    use crate::time::ManualClock;
    use std::time::Duration;

    fn legs() -> Arc<Legs> {
        let window = RemoteLeg::window("tokens", 100, Duration::from_secs(60)).per(Cost::new("tokens"));
        Arc::new(Legs::of(&[window, RemoteLeg::permits("slots", 3)]).unwrap())
    }

    fn charge(units: u64, spent: u64) -> Charge {
        Charge {
            units: KeyLeg::units([units, 1]),
            spent: KeyLeg::units([spent, 0]),
        }
    }

    /// Given a reservation of 50 of which 20 are spent while nothing is to be sent, then the next report says so, once.
    #[test]
    fn spent_units_are_reported_once_with_the_next_step() {
        let (legs, mut all) = (legs(), Reservations::default());
        let clock = ManualClock::new();
        let [now, later] = [1, 2].map(|second| clock.after(clock.now(), Duration::from_secs(second)));
        all.add(7, &legs, &KeyLeg::units([50, 1]), 90, later);
        assert!(all.change(7, &legs, &charge(50, 0), &charge(50, 20), false) == KeyLeg::units([]));
        assert!(all.due(now).is_none() && all.due(later).is_some());
        let report = all.report(&legs, now, 9);
        let (before, after, used) = (KeyLeg::units([50]), KeyLeg::units([30]), KeyLeg::units([20]));
        assert_eq!(
            report,
            [Reserved {
                at: 7,
                until: 90,
                before,
                after,
                used
            }]
        );
        assert!(all.report(&legs, later, 9).is_empty(), "under way");
        all.on_reply(&legs, &report, 120, later);
        assert!(all.report(&legs, now, 9).is_empty(), "nothing new");
        // The renewal names the new end.
        let report = all.report(&legs, later, 9);
        assert_eq!(
            (report[0].until, report[0].before, report[0].used),
            (120, after, KeyLeg::units([]))
        );
        all.on_reply(&legs, &report, 150, later);
        // 10 of the 20 are not used after all: a correction, since the store knows of them. Then it ends.
        assert_eq!(
            all.change(7, &legs, &charge(50, 20), &charge(10, 10), true),
            KeyLeg::units([10])
        );
        let report = all.report(&legs, now, 9);
        assert_eq!((report[0].before, report[0].after), (after, KeyLeg::units([])));
        all.on_reply(&legs, &report, 150, later);
        assert!(all.is_empty());
    }

    #[test]
    fn a_report_that_was_given_up_loses_no_use_and_names_no_end() {
        let (legs, mut all) = (legs(), Reservations::default());
        let now = Instant::ZERO;
        all.add(7, &legs, &KeyLeg::units([50]), 90, now);
        all.change(7, &legs, &charge(50, 0), &charge(50, 20), false);
        let report = all.report(&legs, now, 9);
        all.on_given_up(&legs, &report);
        let report = all.report(&legs, now, 9);
        let (before, after, used) = (KeyLeg::units([]), KeyLeg::units([30]), KeyLeg::units([20]));
        assert_eq!(
            report,
            [Reserved {
                at: 7,
                until: 0,
                before,
                after,
                used
            }]
        );
    }
}
