//! Units of permits that the session holds: those in use, by the fencing tokens of their grants, and those free for some time.

use super::loan::Returned;
use crate::remote::config::Prefetch;
use crate::time::{Clock, Instant};
use std::collections::{BTreeMap, btree_map};

// Invariants: `in_use` is the sum of `by_token`, and at most `held`; only the entry of the last grant may be zero.
#[derive(Debug, Default)]
#[cfg_attr(tollgate_proofs, derive(Clone))]
pub(super) struct Units {
    pub(super) held: u64,
    pub(super) in_use: u64,
    /// The token of the last grant, and the number of admissions since it.
    token: u64,
    order: u64,
    /// Units in use, by the token of their permits.
    by_token: BTreeMap<u64, u64>,
    /// The fewest units free since the last check, and the instant of the next check.
    pub(super) least_free: u64,
    pub(super) idle_at: Option<Instant>,
}

impl Units {
    pub(super) fn free(&self) -> u64 {
        self.held - self.in_use
    }

    /// Takes `n` free units. Returns the token of their permit, and its number since that token.
    pub(super) fn take(&mut self, n: u64) -> (u64, u64) {
        self.in_use += n;
        self.least_free = self.least_free.min(self.free());
        if n > 0 {
            *self.by_token.entry(self.token).or_default() += n;
        }
        let order = self.order;
        self.order += 1;
        (self.token, order)
    }

    /// The token and the number of the next permit.
    pub(super) fn next(&self) -> (u64, u64) {
        (self.token, self.order)
    }

    /// Counts what was taken and put back of a loan.
    pub(super) fn take_back(&mut self, returned: &Returned) {
        let Returned {
            lent,
            left,
            least,
            admissions,
        } = *returned;
        self.least_free = self.least_free.min(self.free() + least - lent);
        self.in_use = self.in_use + lent - left;
        let used = self.by_token.entry(self.token).or_default();
        *used = *used + lent - left;
        self.order += admissions;
    }

    /// Frees units of a permit with this token.
    pub(super) fn put_back(&mut self, units: u64, token: u64) {
        self.in_use -= units;
        if let btree_map::Entry::Occupied(mut used) = self.by_token.entry(token) {
            *used.get_mut() -= units;
            // The entry of the last grant stays, since its units are used again.
            if *used.get() == 0 && token != self.token {
                used.remove();
            }
        }
    }

    /// Adds units that the store has granted.
    pub(super) fn receive(&mut self, units: u64, token: u64) {
        if self.by_token.get(&self.token) == Some(&0) {
            self.by_token.remove(&self.token);
        }
        (self.token, self.order) = (token, 0);
        self.held += units;
    }

    /// Removes free units, which go back to the store.
    pub(super) fn give(&mut self, units: u64) {
        self.held -= units;
        self.least_free = self.least_free.min(self.free());
    }

    /// All units are lost. Returns whether there were any.
    pub(super) fn lapse(&mut self) -> bool {
        let (held, token, order) = (self.held, self.token, self.order);
        *self = Self {
            token,
            order,
            ..Self::default()
        };
        held > 0
    }

    /// The token of the oldest grant with units held here, including the last one, whose units may be used again.
    pub(super) fn oldest(&self) -> Option<u64> {
        let used = self.by_token.keys().next().copied();
        (self.held > 0).then(|| used.unwrap_or(self.token))
    }

    /// The units that were free for the idle time of the prefetch, beyond those that it keeps: they go back.
    pub(super) fn idle(&mut self, prefetch: &Prefetch, now: Instant, clock: &Clock) -> u64 {
        let idle = match self.idle_at {
            _ if self.free() == 0 => {
                self.idle_at = None;
                return 0;
            }
            Some(at) if at > now => return 0,
            Some(_) => self.least_free.min(self.free().saturating_sub(prefetch.low)),
            None => 0,
        };
        self.least_free = self.free() - idle;
        self.idle_at = (self.least_free > prefetch.low).then(|| clock.after(now, prefetch.idle));
        idle
    }
}

#[cfg(all(test, not(tollgate_proofs)))]
mod tests {
    use super::*;
    use crate::ManualClock;
    use std::time::Duration;

    #[test]
    fn the_oldest_grant_is_that_of_units_still_held() {
        let mut units = Units::default();
        units.receive(2, 10);
        assert_eq!(units.take(2), (10, 0));
        units.receive(1, 11);
        assert_eq!((units.take(1), units.oldest()), ((11, 0), Some(10)));
        units.put_back(1, 10);
        assert_eq!(units.oldest(), Some(10), "one is in use");
        units.put_back(1, 10);
        assert_eq!(units.oldest(), Some(11));
        assert_eq!(units.take(2), (11, 1), "they are used again, under the last token");
        assert!(units.lapse() && !units.lapse());
        assert_eq!((units.oldest(), units.free()), (None, 0));
    }

    #[test]
    fn units_that_were_free_all_the_time_go_back_beyond_those_kept() {
        let clock = ManualClock::new();
        let prefetch = Prefetch {
            low: 1,
            idle: Duration::from_secs(1),
            ..Prefetch::up_to(8)
        };
        let mut units = Units::default();
        units.receive(6, 1);
        assert_eq!(
            units.idle(&prefetch, clock.now(), &clock),
            0,
            "they were not seen free before"
        );
        units.take(2);
        units.put_back(2, 1);
        clock.advance(Duration::from_secs(1));
        assert_eq!(units.idle(&prefetch, clock.now(), &clock), 4, "two were in use");
        units.give(4);
        clock.advance(Duration::from_secs(1));
        assert_eq!(units.idle(&prefetch, clock.now(), &clock), 1, "one is kept");
    }
}
