//! Max-min fairness: the inflow goes in equal parts to all shares that are not full, and the part that a full share
//! does not need goes to the rest. That is the fluid model of fair queueing (Demers, Keshav and Shenker, 1989): no
//! share can be given more without taking from one that has less.
//!
//! All shares that are not full gain alike, so one number says how much they have gained: `level`. A share remembers
//! where it was empty on that axis. It is full when the axis is a burst beyond that. So the shares fill up in the order
//! of where they were empty, and each change costs a logarithm.
//!
//! Amounts are in grains of `2^-20` tokens. The part below whole grains is kept for the next distribution.

use std::collections::BTreeSet;

/// Grains per token.
pub(super) const GRAIN: u32 = 20;

/// The levels of all shares.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct MaxMin {
    /// The inflow per tick, in `2^-64` grains.
    flow: u128,
    /// The most ticks whose inflow fits the number.
    longest: u64,
    /// The inflow that is not distributed yet, in `2^-64` grains.
    remainder: u128,
    /// The instant up to which inflow is counted.
    until: u64,
    /// The gain of each share that is not full, since the beginning.
    level: u128,
    /// The most that a share can hold.
    burst: u64,
    /// The shares that are not full: where they were empty, and their numbers.
    filling: BTreeSet<(u128, u64)>,
}

/// One share. Full while it is not among those that fill.
#[derive(Debug)]
pub(super) struct Share {
    number: u64,
    /// Where it was empty, unless it has filled up since.
    empty: u128,
    /// All refunds to it, ever.
    refunded: u128,
}

impl MaxMin {
    /// `flow` in `2^-64` grains per tick; `burst` in grains, the most of each share.
    pub(super) fn new(flow: u128, burst: u64, now: u64) -> Self {
        let flow = flow.max(1);
        Self {
            flow,
            longest: u64::try_from((u128::MAX >> 1) / flow).unwrap_or(u64::MAX).max(1),
            remainder: 0,
            until: now,
            // So that a share can have been empty a burst ago.
            level: u128::from(burst),
            burst,
            filling: BTreeSet::new(),
        }
    }

    /// A new share, full.
    pub(super) fn new_share(&self, number: u64) -> Share {
        Share {
            number,
            empty: 0,
            refunded: 0,
        }
    }

    fn burst(&self) -> u128 {
        u128::from(self.burst)
    }

    /// Distributes the inflow until `now`. An earlier instant than the latest changes nothing.
    pub(super) fn advance(&mut self, now: u64) {
        let wanted = !self.filling.is_empty() || now <= self.until;
        while self.until < now && !self.filling.is_empty() {
            let ticks = (now - self.until).min(self.longest);
            self.until += ticks;
            self.remainder += u128::from(ticks) * self.flow;
            self.distribute();
        }
        // Less than the inflow of a tick is the rounding of the wait for the last share.
        if self.filling.is_empty() && (!wanted || self.remainder >= self.flow) {
            self.remainder = 0;
        }
        self.until = self.until.max(now);
    }

    fn distribute(&mut self) {
        while let Some(&(empty, number)) = self.filling.first() {
            let shares = self.filling.len() as u128;
            let room = empty + self.burst() - self.level;
            let each = ((self.remainder >> 64) / shares).min(room);
            self.level += each;
            self.remainder -= (each * shares) << 64;
            if each < room {
                return;
            }
            self.filling.remove(&(empty, number));
        }
    }

    /// Where the share was empty on the current axis.
    fn empty(&self, share: &Share) -> u128 {
        if self.filling.contains(&(share.empty, share.number)) {
            share.empty
        } else {
            self.level - self.burst()
        }
    }

    /// The grains of the share; negative in debt.
    pub(super) fn held(&self, share: &Share) -> i128 {
        self.level as i128 - self.empty(share) as i128
    }

    pub(super) fn is_full(&self, share: &Share) -> bool {
        !self.filling.contains(&(share.empty, share.number))
    }

    /// The number of shares that divide the rate while this share has room.
    pub(super) fn sharers(&self, share: &Share) -> usize {
        self.filling.len() + usize::from(self.is_full(share))
    }

    fn set_empty(&mut self, share: &mut Share, empty: u128) {
        self.filling.remove(&(share.empty, share.number));
        share.empty = empty;
        if empty + self.burst() > self.level {
            self.filling.insert((empty, share.number));
        }
    }

    /// Takes `grains` if they are there. Returns the mark of the take: where the share is empty then, plus all refunds so far.
    pub(super) fn take(&mut self, share: &mut Share, grains: u64) -> Option<u128> {
        let empty = self.empty(share) + u128::from(grains);
        if empty > self.level {
            return None;
        }
        self.set_empty(share, empty);
        Some(empty + share.refunded)
    }

    /// Refunds a take, as far as its grains would still be there: not the part that the share could not have held by
    /// now. Returns whether that was anything.
    pub(super) fn give_back(&mut self, share: &mut Share, mark: u128, grains: u64) -> bool {
        let empty = self.empty(share);
        let grains = self.room_since(share, mark).min(grains.into());
        self.set_empty(share, empty - grains);
        share.refunded += grains;
        grains > 0
    }

    /// Takes `grains` more for a take, into debt if need be. Returns the new mark: the part of the old that may still
    /// come back, and the new grains.
    pub(super) fn take_more(&mut self, share: &mut Share, mark: u128, grains: u64) -> u128 {
        let kept = self.room_since(share, mark);
        let empty = self.empty(share) + u128::from(grains);
        self.set_empty(share, empty);
        self.level - self.burst() + share.refunded + kept + u128::from(grains)
    }

    /// The room that was left at the mark, less the distribution and the refunds since.
    fn room_since(&self, share: &Share, mark: u128) -> u128 {
        mark.saturating_sub(self.level - self.burst() + share.refunded)
    }

    /// Removes the share. Returns whether that leaves more to the others.
    pub(super) fn leave(&mut self, share: &Share) -> bool {
        self.filling.remove(&(share.empty, share.number))
    }

    /// The earliest tick at which the share holds `grains`, if nothing is taken or refunded meanwhile. At most a burst
    /// is ever there.
    pub(super) fn holds_at(&self, share: &Share, grains: u128) -> u64 {
        let target = self.empty(share) + grains.min(self.burst());
        let (mut level, mut shares, mut wanted) = (self.level, self.filling.len() as u128, 0u128);
        if target <= level {
            return self.until;
        }
        for &(empty, _) in &self.filling {
            let full = empty + self.burst();
            if full >= target {
                break;
            }
            wanted = wanted.saturating_add((full - level).saturating_mul(shares));
            (level, shares) = (full, shares - 1);
        }
        wanted = wanted.saturating_add((target - level).saturating_mul(shares));
        // Beyond the range of the number it is a lower bound.
        let wanted = wanted.min(u128::MAX >> 64) << 64;
        let ticks = wanted.saturating_sub(self.remainder).div_ceil(self.flow);
        self.until.saturating_add(u64::try_from(ticks).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TOKEN: u64 = 1 << GRAIN;

    /// One token per tick.
    fn max_min(burst: u64) -> MaxMin {
        MaxMin::new(u128::from(TOKEN) << 64, burst * TOKEN, 0)
    }

    fn tokens(max_min: &MaxMin, share: &Share) -> f64 {
        max_min.held(share) as f64 / TOKEN as f64
    }

    #[test]
    fn the_part_of_a_full_share_goes_to_the_rest() {
        let mut max_min = max_min(10);
        let mut shares: Vec<_> = (0..3).map(|number| max_min.new_share(number)).collect();
        // They lack 2, 6 and 10.
        for (share, lacks) in shares.iter_mut().zip([2, 6, 10]) {
            max_min.take(share, lacks * TOKEN).unwrap();
        }
        assert_eq!(max_min.holds_at(&shares[2], u128::from(TOKEN) * 10), 18);
        let mut held = Vec::new();
        for now in [3, 6, 10, 14, 16, 18] {
            max_min.advance(now);
            held.push([0, 1, 2].map(|at| tokens(&max_min, &shares[at])));
        }
        assert_eq!(
            held,
            [
                [9.0, 5.0, 1.0],
                [10.0, 6.0, 2.0],
                [10.0, 8.0, 4.0],
                [10.0, 10.0, 6.0],
                [10.0, 10.0, 8.0],
                [10.0, 10.0, 10.0]
            ]
        );
    }

    proptest! {
        /// Given shares that take as much as they may, then they take at most a burst each plus the inflow. And a
        /// promised amount is there at the promised tick, and not before, if no other share takes.
        #[test]
        fn no_more_is_taken_than_bursts_and_inflow(
            steps in prop::collection::vec((0usize..4, 1u64..6, 0u64..9, any::<bool>()), 1..200),
            burst in 6u64..20,
        ) {
            let mut max_min = max_min(burst);
            let mut shares: Vec<_> = (0..4).map(|number| max_min.new_share(number)).collect();
            let (mut now, mut taken) = (0, 0);
            for (at, n, ticks, waits) in steps {
                now += ticks;
                max_min.advance(now);
                let grains = n * TOKEN;
                if waits {
                    let ready = max_min.holds_at(&shares[at], grains.into());
                    if ready > now {
                        max_min.advance(ready - 1);
                        prop_assert!(max_min.held(&shares[at]) < i128::from(grains));
                    }
                    now = now.max(ready);
                    max_min.advance(now);
                    prop_assert!(max_min.held(&shares[at]) >= i128::from(grains));
                }
                if max_min.take(&mut shares[at], grains).is_some() {
                    taken += n;
                }
                for share in &shares {
                    prop_assert!((0..=i128::from(burst * TOKEN)).contains(&max_min.held(share)));
                }
                prop_assert!(taken <= 4 * burst + now);
            }
        }

        /// Given shares that want different amounts per tick for long, then each gets its water-filling share. That is
        /// its want, or an equal part of the rest that the modest ones leave.
        #[test]
        fn each_gets_its_max_min_share(wants in prop::collection::vec(1u64..40, 2..6)) {
            // In hundredths of the inflow.
            const BURST: u64 = 8;
            const TICKS: u64 = 5_000;
            let mut max_min = max_min(BURST);
            let mut shares: Vec<_> = (0..wants.len()).map(|number| max_min.new_share(number as u64)).collect();
            let (mut owed, mut got) = (vec![0u64; wants.len()], vec![0u64; wants.len()]);
            for now in 1..=TICKS {
                max_min.advance(now);
                for at in 0..wants.len() {
                    // Requests of one token each; a modest backlog, so that wants do not pile up.
                    owed[at] = (owed[at] + wants[at]).min(1_000);
                    while owed[at] >= 100 && max_min.take(&mut shares[at], TOKEN).is_some() {
                        owed[at] -= 100;
                        got[at] += 1;
                    }
                }
            }
            for (at, fair) in water_filling(&wants, 100.0).into_iter().enumerate() {
                let fair = fair / 100.0 * TICKS as f64;
                let slack = BURST as f64 + 12.0;
                prop_assert!((got[at] as f64 - fair).abs() <= slack, "{at} of {wants:?}: {} of {fair}", got[at]);
            }
        }
    }

    fn water_filling(wants: &[u64], mut rest: f64) -> Vec<f64> {
        let mut order: Vec<_> = (0..wants.len()).collect();
        order.sort_by_key(|&at| wants[at]);
        let mut fair = vec![0.0; wants.len()];
        for (served, &at) in order.iter().enumerate() {
            fair[at] = (rest / (wants.len() - served) as f64).min(wants[at] as f64);
            rest -= fair[at];
        }
        fair
    }
}
