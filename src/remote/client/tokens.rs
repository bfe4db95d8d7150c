//! The tokens of a rate or window in this process: those available, those granted for later, and how many of the taken ones may come
//! back.
//!
//! # Refunds
//! The tokens here and those at the store count as one bucket, which holds a prefetch more than the store's. Tokens taken out
//! of it and given up are no longer missing once that bucket would have been full without them: later refill would have
//! overflowed. So no more comes back than was missing at every instant since.
//!
//! Only the store knows how full its bucket is. It says so with each reply, and from then on it fills no faster than its rate:
//! that is the least that is missing. The departures from a window are unknown here. So only tokens not available here count as
//! missing, and without prefetching nothing has come in that could be too much.

use super::low_watermarks::LowWatermarks;
use super::ticket::RemoteTicket;
use crate::rate::Quota;
use crate::remote::backend::{Rule, Usage};
use crate::remote::config::{Config, Prefetch};
use crate::time::{Clock, Instant};
use std::collections::VecDeque;
use std::time::Duration;

/// Tokens given up this soon come back whole where nothing is prefetched: the bound is exceeded by at most the refill of this
/// time.
pub(super) const LATENESS: Duration = Duration::from_millis(10);

// Invariant: `total` is the sum of `available`.
#[derive(Debug)]
#[cfg_attr(tollgate_proofs, derive(Clone))]
pub(super) struct Tokens {
    clock: Clock,
    /// Tokens available here, each lot with the instant at which it is dropped.
    available: VecDeque<(Instant, u64)>,
    total: u64,
    /// Granted tokens, each lot with the instants from which it may be used, and at which it is dropped.
    upcoming: VecDeque<(Instant, Instant, u64)>,
    /// A lower bound of what the store's bucket lacked, and the instant from which it refills.
    shortfall: (u64, Instant),
    /// The lowest shortage, here and at the store, since each token was taken.
    low_watermarks: LowWatermarks,
    /// Tokens that the demand takes in a span, as last measured.
    batch: u64,
    /// Tokens spent since a batch was last taken, and the instant of that.
    spent: u64,
    fetched_at: Instant,
}

impl Tokens {
    pub(super) fn new(clock: &Clock, now: Instant) -> Self {
        Self {
            clock: clock.clone(),
            available: VecDeque::new(),
            total: 0,
            upcoming: VecDeque::new(),
            shortfall: (0, now),
            low_watermarks: LowWatermarks::new(),
            batch: 0,
            spent: 0,
            fetched_at: now,
        }
    }

    /// Those that can be taken at once. Stale ones must be dropped before.
    pub(super) fn available(&self) -> u64 {
        self.total
    }

    pub(super) fn are_upcoming(&self) -> bool {
        !self.upcoming.is_empty()
    }

    /// When the first of the upcoming ones may be used, and when the first of the available ones is dropped.
    pub(super) fn next(&self) -> (Option<Instant>, Option<Instant>) {
        let upcoming = self.upcoming.front().map(|(from, ..)| *from);
        (upcoming, self.available.front().map(|(until, _)| *until))
    }

    /// When `n` will be available from those here and those granted for later. `None` if they do not suffice.
    pub(super) fn arrives_at(&self, n: u64) -> Option<Instant> {
        let mut arrived = 0;
        let mut upcoming = self.upcoming.iter().map(|&(from, _, units)| {
            arrived += units;
            let kept = self.available.iter().filter(|&&(until, _)| until > from);
            (from, arrived + kept.map(|(_, units)| units).sum::<u64>())
        });
        upcoming.find(|&(_, there)| there >= n).map(|(from, _)| from)
    }

    /// Adds granted tokens that may be used from one instant on, and are dropped at another.
    pub(super) fn receive(&mut self, units: u64, (from, until): (Instant, Instant)) {
        let at = self.upcoming.partition_point(|&(other, ..)| other <= from);
        self.upcoming.insert(at, (from, until, units));
    }

    /// Makes tokens available whose time has come, and drops those that were not spent in time: returns how many. Of refunded ones no
    /// more is kept than a prefetch holds beside them, or than the first waiter needs.
    pub(super) fn advance(&mut self, first_need: impl Fn() -> u64, now: Instant, config: &Config) -> u64 {
        let mut expired = 0;
        let (upcoming, dropped) = self.next();
        if dropped.is_some_and(|until| until <= now) {
            self.note_missing(now, config);
        }
        if upcoming.is_some_and(|from| from <= now) {
            let most = config.prefetch.map(|prefetch| prefetch.most.max(first_need()));
            while let Some(&(_, until, units)) = self.upcoming.front().filter(|(from, ..)| *from <= now) {
                self.upcoming.pop_front();
                let over = most.map_or(0, |most| (self.total + units).saturating_sub(most));
                let over = over.min(self.total);
                if over > 0 {
                    expired += over;
                    self.note_missing(now, config);
                    self.draw(over);
                }
                self.add(units, until);
            }
        }
        while let Some(&(_, units)) = self.available.front().filter(|(until, _)| *until <= now) {
            expired += units;
            self.total -= units;
            self.available.pop_front();
        }
        expired
    }

    /// Adds tokens that are available until `until`.
    fn add(&mut self, units: u64, until: Instant) {
        let at = self.available.partition_point(|(other, _)| *other <= until);
        self.available.insert(at, (until, units));
        self.total += units;
    }

    /// Takes `n` of the available tokens. Returns the moment since which they are missing, and until when they would have been kept.
    pub(super) fn take(&mut self, n: u64, now: Instant, config: &Config) -> (u64, Instant) {
        let until = self.available.front().map_or(Instant::ZERO, |(until, _)| *until);
        let before = self.missing(0, now, config);
        self.low_watermarks.note(before);
        // Usually the sum; less where more is available than can be missing.
        let after = if before > 0 {
            before + n
        } else {
            self.missing(n, now, config)
        };
        let since = self.low_watermarks.begin(after);
        self.spend(n);
        (since, until)
    }

    /// Takes as many of `n` tokens as are available. Returns the others.
    pub(super) fn charge(&mut self, n: u64, now: Instant, config: &Config) -> u64 {
        let part = n.min(self.total);
        self.note_missing(now, config);
        self.spend(part);
        n - part
    }

    fn spend(&mut self, n: u64) {
        self.spent += n;
        self.draw(n);
    }

    /// Takes `n` of the available tokens, those that expire first at first.
    fn draw(&mut self, mut n: u64) {
        while n > 0 {
            let Some((_, units)) = self.available.front_mut() else {
                return;
            };
            let part = n.min(*units);
            *units -= part;
            self.total -= part;
            n -= part;
            if *units == 0 {
                self.available.pop_front();
            }
        }
    }

    /// Makes `units` of a ticket available again: as many as are still missing, up to a prefetch, and for as long as they would have
    /// been. Returns whether there are any.
    pub(super) fn refund(&mut self, units: u64, ticket: &RemoteTicket, now: Instant, config: &Config) -> bool {
        self.note_missing(now, config);
        let (missing, until) = self.still_missing(units, ticket, now, config);
        self.spent = self.spent.saturating_sub(units);
        // A settled ticket has the units that are left of it.
        let own = ticket.units.max(units);
        let most = config.prefetch.map_or(own, |prefetch| prefetch.most.max(own));
        let units = missing.min(most.saturating_sub(self.total));
        let comes_back = until > now && units > 0;
        if comes_back {
            self.low_watermarks.lower(ticket.token, units);
            self.add(units, until);
        }
        comes_back
    }

    /// Records the least shortage before a change at `now`.
    pub(super) fn note_missing(&mut self, now: Instant, config: &Config) {
        let missing = self.missing(0, now, config);
        self.low_watermarks.note(missing);
    }

    /// Those that are available, or granted for later.
    fn here(&self) -> u64 {
        self.total + self.upcoming.iter().map(|(.., units)| units).sum::<u64>()
    }

    /// The least shortage once `n` more were taken.
    fn missing(&self, n: u64, now: Instant, config: &Config) -> u64 {
        let most = config.prefetch.map_or(0, |prefetch| prefetch.most);
        (most + self.missing_there(now, config) + n).saturating_sub(self.here())
    }

    /// The least number of tokens that the store's bucket lacks.
    fn missing_there(&self, now: Instant, config: &Config) -> u64 {
        let (tokens, since) = self.shortfall;
        match config.rule {
            Rule::Rate { quota } => {
                // Clocks drift apart.
                let passed = self.clock.between(since, now).saturating_mul(101) / 100;
                tokens.saturating_sub(gained(&quota, passed))
            }
            _ => 0,
        }
    }

    /// Records the shortage that the store reported, asked at `sent`, with the units that it `gave` then and when they may be used.
    pub(super) fn note_usage(&mut self, usage: Usage, gave: u64, again: Option<Duration>, sent: Instant) {
        let (limit, used) = (usage.limit, usage.in_use.min(usage.limit));
        // The store counts a part of a token as one.
        let known = (used.saturating_sub(1), sent);
        self.shortfall = match again {
            // A grant for later leaves nothing until then.
            Some(again) if gave > 0 => (limit, self.clock.after(sent, again)),
            None if gave > known.0 => (gave.min(limit), sent),
            _ => known,
        };
    }

    /// Forgets the shortage of the store.
    pub(super) fn forget_shortfall(&mut self, now: Instant, config: &Config) {
        self.shortfall = (0, now);
        self.note_missing(now, config);
    }

    /// How many of `units` taken with `ticket` are still missing, and until when they may be used.
    fn still_missing(&self, units: u64, ticket: &RemoteTicket, now: Instant, config: &Config) -> (u64, Instant) {
        let until = Instant::from_ticks(ticket.order);
        match (config.rule, config.prefetch) {
            (Rule::Rate { quota }, None) => {
                // Only whole tokens can be given back here, and a small bucket soon refills a part of one.
                let arrived = self.clock.after(now, config.expiry());
                let back = if arrived <= self.clock.after(until, LATENESS) {
                    units
                } else {
                    units.min(self.low_watermarks.since(ticket.token))
                };
                // Without a prefetch of its own, this process must spend them before the store has as many again.
                let spare = (self.shortfall.0 + 1).saturating_sub(self.here() + back);
                let lasts = spending(&quota, spare).saturating_mul(100) / 101;
                (back, until.min(self.clock.after(self.shortfall.1, lasts)))
            }
            (_, Some(_)) => (units.min(self.low_watermarks.since(ticket.token)), until),
            (_, None) => (units, until),
        }
    }

    /// Below this many available units more are fetched ahead of demand.
    pub(super) fn low_water(&self, prefetch: &Prefetch) -> u64 {
        match self.spent {
            0 => prefetch.low,
            _ => prefetch.low.max(self.batch / 2),
        }
    }

    pub(super) fn batch(&self) -> u64 {
        self.batch
    }

    /// Measures how many tokens the demand takes in a span, as a batch is asked for.
    pub(super) fn begin_batch(&mut self, now: Instant, config: &Config) {
        self.batch = config.prefetch.map_or(0, |prefetch| {
            let passed = self.clock.between(self.fetched_at, now).as_nanos().max(1);
            let span = prefetch.span.as_nanos();
            let batch = u128::from(self.spent) * span / passed.max(span / 16);
            u64::try_from(batch).unwrap_or(u64::MAX).min(prefetch.most)
        });
        self.spent = 0;
        self.fetched_at = now;
    }
}

/// The tokens that come in `passed`, rounded up.
fn gained(quota: &Quota, passed: Duration) -> u64 {
    let parts = passed.as_nanos().saturating_mul(quota.count().into());
    u64::try_from(parts.div_ceil(quota.period().as_nanos())).unwrap_or(u64::MAX)
}

/// The time in which `tokens` come, rounded down.
fn spending(quota: &Quota, tokens: u64) -> Duration {
    let nanos = quota.period().as_nanos().saturating_mul(tokens.into()) / u128::from(quota.count());
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(all(test, not(tollgate_proofs)))]
mod tests {
    use super::*;
    use crate::ManualClock;
    use proptest::prelude::*;

    const MS: Duration = Duration::from_millis(1);
    const BURST: u64 = 10;
    const MOST: u64 = 5;

    /// A process beside a store that gains a token a millisecond, and what was spent of it, by the millisecond.
    struct World {
        clock: ManualClock,
        config: Config,
        tokens: Tokens,
        /// What the store has.
        free: u64,
        spent: Vec<(u64, u64)>,
        tickets: Vec<(usize, RemoteTicket)>,
    }

    impl World {
        fn new(prefetch: Prefetch) -> Self {
            let clock = ManualClock::new();
            let rule = Rule::Rate {
                quota: Quota::per_second(1_000).burst(BURST),
            };
            Self {
                tokens: Tokens::new(&clock, clock.now()),
                config: Config::of(rule, Some(prefetch)),
                clock,
                free: BURST,
                spent: Vec::new(),
                tickets: Vec::new(),
            }
        }

        fn advance(&mut self, millis: u64) -> u64 {
            self.clock.advance(millis as u32 * MS);
            self.free = BURST.min(self.free + millis);
            self.tokens.advance(|| 0, self.clock.now(), &self.config)
        }

        fn fetch(&mut self, units: u64) {
            let (now, clock) = (self.clock.now(), self.clock.clock());
            let units = units.min(self.free).min(MOST - self.tokens.available());
            self.free -= units;
            let usage = Usage {
                limit: BURST,
                in_use: BURST - self.free,
                ..Usage::default()
            };
            self.tokens.note_missing(now, &self.config);
            self.tokens.note_usage(usage, units, None, now);
            let until = clock.after(now, self.config.expiry());
            self.tokens.receive(units, (now, until));
            self.tokens.advance(|| 0, now, &self.config);
        }

        fn take(&mut self, units: u64) {
            if units <= self.tokens.available() {
                let (token, until) = self.tokens.take(units, self.clock.now(), &self.config);
                let (term, order) = (1, until.ticks());
                let ticket = RemoteTicket {
                    units,
                    term,
                    token,
                    order,
                };
                self.tickets.push((self.spent.len(), ticket));
                self.spent.push((self.clock.elapsed().as_millis() as u64, units));
            }
        }

        /// Gives up a part of an admission, which counts no more.
        fn refund(&mut self, which: usize, left: u64) {
            if let Some((at, ticket)) = self.tickets.get_mut(which) {
                let units = ticket.units.saturating_sub(left);
                ticket.units -= units;
                self.spent[*at].1 -= units;
                self.tokens.refund(units, ticket, self.clock.now(), &self.config);
            }
        }

        /// The most in any span beyond the refill.
        fn excess(&self) -> u64 {
            let (mut level, mut last, mut most) = (0_u64, 0, 0);
            for &(at, units) in &self.spent {
                level = level.saturating_sub(at - last) + units;
                (last, most) = (at, most.max(level));
            }
            most
        }
    }

    proptest! {
        /// Whatever is fetched, taken and given up, no span holds more than the burst, a prefetch and the refill.
        #[test]
        fn refunds_add_to_no_span(doings in prop::collection::vec((0_u8..9, 0_u64..12, 0_usize..40), 1..300)) {
            let mut world = World::new(Prefetch { expiry: 40 * MS, ..Prefetch::up_to(MOST) });
            for (doing, number, which) in doings {
                match doing {
                    0..2 => drop(world.advance(number)),
                    2..4 => world.fetch(number),
                    4..7 => world.take(number % MOST + 1),
                    _ => world.refund(which, number % 3),
                }
                prop_assert!(world.free + world.tokens.available() <= BURST + MOST, "more than there can be");
                prop_assert!(world.excess() <= BURST + MOST, "{:?}", world.spent);
            }
        }
    }

    #[test]
    fn a_refund_is_kept_no_longer_than_it_would_have_been() {
        let mut world = World::new(Prefetch {
            expiry: 8 * MS,
            ..Prefetch::up_to(MOST)
        });
        world.fetch(5);
        world.take(3);
        world.advance(4);
        world.refund(0, 0);
        assert_eq!(
            world.tokens.available(),
            5,
            "one is missing at the store, and two and a prefetch were here"
        );
        assert_eq!((world.advance(3), world.tokens.available()), (0, 5));
        assert_eq!((world.advance(1), world.tokens.available()), (5, 0));
    }

    #[test]
    fn a_batch_is_the_demand_of_a_span() {
        let mut world = World::new(Prefetch {
            span: 20 * MS,
            ..Prefetch::up_to(MOST)
        });
        for _ in 0..5 {
            world.fetch(1);
            world.take(1);
            world.advance(10);
        }
        world.tokens.begin_batch(world.clock.now(), &world.config);
        assert_eq!(world.tokens.batch(), 2);
        world.advance(10);
        world.tokens.begin_batch(world.clock.now(), &world.config);
        assert_eq!(world.tokens.batch(), 0, "nothing was spent since");
    }
}
