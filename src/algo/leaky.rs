//! The leaky bucket as a meter: what is taken fills it, time empties it, and it admits while it does not run over.
//!
//! What is in it may rise beyond the brim by debts and bookings: they are due when it has sunk back to it.
//!
//! # Giving back
//! Had a reservation not been made, the bucket would be lower by it, but never below empty. So it gives back at most
//! what it left in the bucket, less what has flowed out since. What was taken later lies on top and does not matter; what
//! *older* reservations have given back since lay below, and is subtracted, as is what it gave back itself. That takes an
//! order (a number for each taking) and the gifts of late, [`GIFTS`] at most: older ones that could still matter count as
//! below, and so does all that one gives back which was settled upwards: a part of it lies below what was taken between. And no more than leaves every later booking an instant at which the bucket has not run empty before; see
//! [`Ahead`].
//!
//! # One unit alone
//! Where there was nothing in the bucket but one unit, that has flowed out since, another one taken is [`Lone`].

use super::ahead::{Ahead, Taken};
use super::drain::{Drain, GRAIN, grains};
use super::lone::{self, Known, Lone, Times};
use super::meter::Meter;
use std::collections::VecDeque;

/// How many gifts are remembered one by one.
pub(crate) const GIFTS: usize = 64;

/// Amounts are grains.
#[derive(Debug)]
pub(crate) struct Leaky {
    now: u64,
    /// Nothing at all is counted without one.
    drain: Option<Drain>,
    level: u128,
    /// What may be in it right after an admission.
    brim: u128,
    /// What may be in it right after a booking.
    size: u128,
    /// What has flowed out so far, and the gifts that are no longer remembered.
    passed: u128,
    /// How often something was taken.
    taken: u64,
    /// What was taken up to then is not given back.
    cleared: u64,
    gifts: VecDeque<Gift>,
    /// The bookings that are not due yet.
    ahead: Ahead<[u64; 3]>,
    /// What would have flowed out since the bucket ran empty, less than a tick ago: the wait for that was rounded up, and what
    /// is taken now counts from then.
    early: u128,
    /// What of that was taken at this instant.
    early_taken: u128,
    /// How long one unit alone takes to flow out; the end of time where that is to be known better than in ticks.
    unit_lasts: u64,
    /// What is in it is one unit that was taken alone.
    lone: Lone<[u64; 3]>,
}

/// In the second word of a mark: it was settled upwards, and so is in two places of the order.
const TWICE: u64 = 1 << 63;

/// How far the bucket was filled by a taking, with all that had flowed out before.
fn filled(mark: &[u64; 3]) -> u128 {
    u128::from(mark[1] & !TWICE) << 64 | u128::from(mark[2])
}

/// By the number of the taking.
impl Taken for [u64; 3] {
    fn is_before(&self, other: &Self) -> bool {
        self[0] < other[0]
    }
}

/// What was given back.
#[derive(Debug)]
struct Gift {
    /// By the taking of this number.
    from: u64,
    /// When so many takings had been made.
    at: u64,
    amount: u128,
    /// Once so much has passed, all that was in the bucket then has flowed out.
    stale: u128,
}

impl Leaky {
    /// An empty bucket.
    pub(crate) fn new(now: u64, drain: Option<Drain>, brim: u64, size: u64) -> Self {
        Self {
            now,
            drain,
            level: 0,
            brim: grains(brim),
            size: grains(size),
            passed: 0,
            taken: 0,
            cleared: 0,
            gifts: VecDeque::new(),
            ahead: Ahead::NOTHING,
            early: 0,
            early_taken: 0,
            unit_lasts: unit_lasts(drain),
            lone: Lone::new([0; 3]),
        }
    }

    /// Changes the outflow. What is in the bucket stays.
    pub(crate) fn set_drain(&mut self, drain: Option<Drain>) {
        self.drain = drain;
        self.unit_lasts = unit_lasts(drain);
        self.early = 0;
        self.lone.end();
        self.ahead.freeze();
    }

    fn is_stopped(&self) -> bool {
        self.drain.is_some_and(|drain| drain.is_stopped())
    }

    pub(crate) fn brim(&self) -> u128 {
        self.brim
    }

    /// What is left below the brim; negative in debt.
    pub(crate) fn room(&self) -> i128 {
        self.brim as i128 - i128::try_from(self.level).unwrap_or(i128::MAX)
    }

    /// Moves the brim, and leaves so much room below it.
    pub(crate) fn set_brim(&mut self, brim: u128, size: u64, room: i128) {
        (self.brim, self.size) = (brim, grains(size));
        self.ahead.freeze();
        let level = (brim as i128).saturating_sub(room).max(0) as u128;
        self.give(0, self.level.saturating_sub(level));
        self.level = level;
        self.lone.end();
    }

    /// How much more than the brim is in the bucket, rounded up to whole units.
    pub(crate) fn debt(&self) -> u64 {
        u64::try_from(self.level.saturating_sub(self.brim).div_ceil(1 << GRAIN)).unwrap_or(u64::MAX)
    }

    /// Takes `n` for a later instant, which it returns. Fails with the instant at which there will be room for the
    /// booking, if there is one.
    pub(crate) fn book(&mut self, n: u64) -> Result<([u64; 3], u64), Option<u64>> {
        let level = self.level.saturating_add(grains(n));
        if self.is_stopped() && n > 0 {
            return Err(None);
        }
        if self.drain.is_some() && level > self.size {
            let fits = grains(n) <= self.size;
            return Err(fits.then(|| self.sunk_at(level - self.size)).flatten());
        }
        let due = self.sunk_at(level.saturating_sub(self.brim)).ok_or(None)?;
        let below = self.level;
        let mark = self.take(n);
        if due > self.now
            && n > 0
            && let Some(mut drain) = self.drain
        {
            self.ahead.pass(self.now);
            let room = below.saturating_sub(drain.pass(due - self.now));
            self.ahead.promise(mark, due, room);
        }
        Ok((mark, due))
    }

    /// Gives back of what a taking took.
    fn let_back(&mut self, mark: [u64; 3], amount: u128) {
        let left = self.left_by(mark[0], filled(&mark));
        let amount = self.ahead.let_back(mark, amount.min(left));
        let from = if mark[1] & TWICE == 0 || seeded!("leaky_counts_above") {
            mark[0]
        } else {
            0
        };
        self.give(from, amount);
    }

    /// The mark under which it counts what was taken; none when that was cleared.
    fn known(&self, mark: [u64; 3]) -> Option<[u64; 3]> {
        match self.lone.find(mark[0]) {
            None => (mark[0] > self.cleared).then_some(mark),
            Some(Known::As(mark)) => Some(mark),
            // Older than all that is still in the bucket, and nothing of it is.
            Some(Known::Past) => Some([0; 3]),
            Some(Known::Cleared) => None,
        }
    }

    /// When so much has flowed out.
    fn sunk_at(&self, amount: u128) -> Option<u64> {
        match &self.drain {
            Some(drain) => drain.ticks_until(amount).map(|ticks| self.now.saturating_add(ticks)),
            None => Some(self.now),
        }
    }

    /// What a taking has left in the bucket.
    fn left_by(&self, number: u64, filled: u128) -> u128 {
        let below = |gift: &&Gift| gift.at >= number && gift.from <= number;
        let given: u128 = self.gifts.iter().filter(below).map(|gift| gift.amount).sum();
        let given = if seeded!("leaky_gives_twice") { 0 } else { given };
        filled.saturating_sub(self.passed).saturating_sub(given)
    }

    /// One unit, into an empty bucket.
    fn take_alone(&mut self) {
        // All that was booked has begun, unless the rate was changed since. Then nobody may pass by them unnoticed.
        self.ahead.pass(self.now);
        if self.ahead.is_empty() {
            self.lone.begin(self.now.saturating_add(self.unit_lasts));
        } else {
            self.lone.end();
        }
    }

    /// Of the latest taking, with so much in the bucket up to it.
    #[inline]
    fn mark_at(&self, level: u128) -> [u64; 3] {
        let filled = level.saturating_add(self.passed);
        [self.taken, (filled >> 64) as u64, filled as u64]
    }

    /// Lowers the level in the name of the taking `from`; zero stands for older than all.
    fn give(&mut self, from: u64, amount: u128) {
        let early = amount.saturating_sub(self.level).min(self.early_taken);
        self.early_taken -= early;
        self.early += early;
        let amount = amount.min(self.level);
        if amount == 0 {
            return;
        }
        self.lone.end();
        while self.gifts.front().is_some_and(|gift| gift.stale <= self.passed) {
            self.gifts.pop_front();
        }
        if self.gifts.len() == GIFTS
            && let Some(gift) = self.gifts.pop_front()
        {
            self.passed = self.passed.saturating_add(gift.amount);
        }
        self.gifts.push_back(Gift {
            from,
            at: self.taken,
            amount,
            stale: self.passed.saturating_add(self.level).saturating_add(self.early_taken),
        });
        self.level -= amount;
    }
}

impl Meter for Leaky {
    type Mark = [u64; 3];

    const BY_WORD: Option<fn(u64) -> Self::Mark> = Some(|until| [lone::mark_of(until), 0, 0]);

    fn went_by_word(&mut self, word: u64) {
        if self.lone.is(word) {
            return;
        }
        // Whatever was in it has flowed out.
        self.passed = self.passed.saturating_add(self.level);
        self.level = 0;
        if let Some(drain) = &mut self.drain {
            drain.run_dry();
        }
        if let Some(since) = lone::since_of(word) {
            self.now = self.now.max(since);
            return self.lone.is_free(since, self.times());
        }
        self.now = word - self.unit_lasts;
        let mark = self.take(1);
        self.lone.went(word, mark);
    }

    #[inline(always)]
    fn open(&mut self) -> u64 {
        let times = self.times();
        self.lone.open(self.now, times)
    }

    #[inline(always)]
    fn times(&self) -> Times {
        Times {
            lasts: self.unit_lasts,
            rest: if self.brim == grains(1) { 0 } else { u64::MAX },
        }
    }

    #[inline]
    fn advance(&mut self, now: u64) {
        let ticks = now.saturating_sub(self.now);
        self.now = self.now.max(now);
        if let Some(drain) = &mut self.drain
            && ticks > 0
        {
            let ran_dry = self.level > 0;
            let flow = drain.pass(ticks);
            let over = flow.saturating_sub(self.level);
            let flow = flow.min(self.level);
            self.passed = self.passed.saturating_add(flow);
            self.level -= flow;
            // What was taken early had flowed out by then.
            self.passed = self.passed.saturating_add(std::mem::take(&mut self.early_taken));
            self.early = 0;
            if self.level == 0 {
                if ran_dry && drain.takes_no_tick(over) && self.unit_lasts == u64::MAX {
                    self.early = over.min(grains(1) - 1);
                } else {
                    drain.run_dry();
                }
                // Nothing is left of anything, as if all that was given back had flowed out.
                while let Some(gift) = self.gifts.pop_front() {
                    self.passed = self.passed.saturating_add(gift.amount);
                }
            }
        }
    }

    fn now(&self) -> u64 {
        self.now
    }

    #[inline]
    fn fits(&self, n: u64) -> bool {
        let sinks = || !self.is_stopped() && self.level.saturating_add(grains(n)) <= self.brim;
        n == 0 || self.drain.is_none() || sinks()
    }

    fn free(&self) -> u64 {
        match self.drain {
            Some(drain) if drain.is_stopped() => 0,
            Some(_) => u64::try_from(self.brim.saturating_sub(self.level) >> GRAIN).unwrap_or(u64::MAX),
            None => u64::MAX,
        }
    }

    #[inline]
    fn take(&mut self, n: u64) -> Self::Mark {
        if self.drain.is_none() {
            return [0; 3];
        }
        self.taken += 1;
        if n == 1 && self.level == 0 && self.brim >= grains(1) {
            self.take_alone();
        } else {
            self.lone.end();
        }
        let early = self.early.min(grains(n));
        self.early -= early;
        self.early_taken += early;
        self.level = self.level.saturating_add(grains(n) - early);
        self.mark_at(self.level.saturating_add(self.early_taken))
    }

    fn restore(&mut self, mark: &Self::Mark, units: u64) {
        let Some(mark) = self.known(*mark) else { return };
        self.ahead.pass(self.now);
        if self.ahead.is_empty() {
            return self.let_back(mark, grains(units));
        }
        for (mark, amount) in self.ahead.give_up(mark, grains(units)) {
            self.let_back(mark, amount);
        }
    }

    fn correct(&mut self, mark: &mut Self::Mark, charged: u64, actual: u64) -> u64 {
        if self.drain.is_none() {
            return actual;
        }
        self.ahead.pass(self.now);
        let known = self.known(*mark);
        match (actual.checked_sub(charged), known) {
            (None, Some(mark)) => self.let_back(mark, grains(charged - actual)),
            (None, None) => {}
            (Some(more), known) => {
                // What is left of it goes on as a part of what is taken now. Others may have been promised instants between
                // both: then only that may still come back.
                let left = match known {
                    Some(mark) if self.ahead.is_empty() => self.left_by(mark[0], filled(&mark)),
                    _ => 0,
                };
                self.lone.end();
                self.taken += 1;
                self.level = self.level.saturating_add(grains(more));
                *mark = self.mark_at(left.saturating_add(grains(more)));
                mark[1] |= TWICE;
            }
        }
        actual
    }

    fn ready(&self, n: u64, ahead: u64) -> Option<u64> {
        if self.drain.is_some() && grains(n) > self.brim {
            return None;
        }
        if n == 0 && ahead == 0 {
            return Some(self.now);
        }
        if self.is_stopped() {
            return None;
        }
        let wanted = self.level.saturating_add(grains(n)).saturating_add(grains(ahead));
        self.sunk_at(wanted.saturating_sub(self.brim))
    }

    fn fresh_at(&self) -> Option<u64> {
        self.sunk_at(self.level)
    }

    fn clear(&mut self) {
        (self.level, self.early, self.early_taken) = (0, 0, 0);
        self.cleared = self.taken;
        self.lone.clear();
        self.gifts.clear();
        self.ahead = Ahead::NOTHING;
    }
}

/// How long one unit takes to flow out of a bucket in which there is nothing else. The end of time where that is no whole
/// number of ticks, so that the rest is not lost each time; but for what is less than a millionth, and for rates at which more
/// time passes while one unit is admitted.
fn unit_lasts(drain: Option<Drain>) -> u64 {
    let Some(mut drain) = drain else { return u64::MAX };
    drain.run_dry();
    let Some(ticks) = drain.ticks_until(grains(1)) else {
        return u64::MAX;
    };
    let in_vain = ticks >= 1_000_000 || drain.is_brief(ticks);
    match in_vain || drain.pass(ticks) == grains(1) {
        true => ticks,
        false => u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is given back in parts is no more than what is left, however much lies on top.
    #[test]
    fn what_one_taking_gives_back_counts_against_it() {
        let mut leaky = Leaky::new(0, Some(Drain::new(1, 10, 1 << 40)), 20, 20);
        let mark = leaky.take(4);
        leaky.advance(10);
        leaky.take(5);
        for left in [6, 5, 5] {
            leaky.restore(&mark, 2);
            assert_eq!(leaky.level, grains(left));
        }
    }

    /// Counters of 2.6 GHz, 24 MHz and 1 GHz: each unit starts at the first tick at which it may.
    #[test]
    fn steady_demand_loses_no_part_of_a_tick() {
        const UNITS: u128 = 50_000;
        const SECOND: u64 = 1_000_000_000;
        for scale in [(1u64 << 40) * 5 / 13, (1 << 40) * 125 / 3, 1 << 40] {
            for count in [7, 900_000, 1_000_003, 3_000_000] {
                let mut leaky = Leaky::new(0, Some(Drain::new(count, SECOND, scale)), 1, 1);
                for _ in 0..UNITS {
                    assert!(leaky.fits(1));
                    leaky.take(1);
                    let ready = leaky.ready(1, 0).unwrap();
                    leaky.advance(ready);
                }
                let exact = ((UNITS * u128::from(SECOND)) << 40) / u128::from(count) / u128::from(scale);
                let off = u128::from(leaky.now).abs_diff(exact);
                assert!(
                    off <= 2 + exact / 1_000_000,
                    "{count}/s of {scale}: {} for {exact}",
                    leaky.now
                );
            }
        }
    }

    /// Those who wait ahead come first, also for nothing.
    #[test]
    fn nothing_is_ready_when_those_ahead_are_through() {
        let mut leaky = Leaky::new(0, Some(Drain::new(1, 10, 1 << 40)), 4, 4);
        leaky.take(4);
        assert_eq!(
            [leaky.ready(0, 0), leaky.ready(0, 3), leaky.ready(1, 0)],
            [Some(0), Some(30), Some(10)]
        );
    }
}
