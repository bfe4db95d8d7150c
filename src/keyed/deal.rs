//! Dealing a rate to shares: whatever flows in goes in equal parts to all shares that are not full, and what a full one
//! does not need goes to the rest. That is max-min fairness, and the fluid model of fair queueing (Demers, Keshav and
//! Shenker, 1989): no share can be given more without taking from one that has less.
//!
//! All shares that are not full gain alike, so one number says what they have gained: `level`. A share remembers where it
//! was empty on that axis. It is full when the axis is a burst beyond that, so the shares fill up in the order of where
//! they were empty, and each change costs a logarithm.
//!
//! Amounts are in grains of `2^-20` tokens. What cannot be dealt in whole grains is kept for the next deal.

use std::collections::BTreeSet;

/// Grains per token.
pub(super) const GRAIN: u32 = 20;

/// Who has how much.
#[derive(Debug)]
pub(super) struct Dealer {
    /// What flows in per tick, in `2^-64` grains.
    flow: u128,
    /// In so many ticks flows in what still fits the number.
    longest: u64,
    /// What has flowed in and is not dealt yet, in `2^-64` grains.
    pot: u128,
    /// The instant up to which it has flowed in.
    until: u64,
    /// What each share that is not full has gained, since the beginning.
    level: u128,
    /// What a share can hold.
    burst: u64,
    /// Where the shares that are not full were empty, and their numbers.
    filling: BTreeSet<(u128, u64)>,
}

/// One share. Full while it is not among those that fill.
#[derive(Debug)]
pub(super) struct Hand {
    number: u64,
    /// Where it was empty, unless it has filled up since.
    empty: u128,
    /// All that it was ever given back.
    given: u128,
}

/// What a share was left with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Left {
    /// Where it was empty then.
    pub(super) empty: u128,
    /// All that it had been given back until then.
    pub(super) given: u128,
}

impl Left {
    /// What was not counted.
    pub(super) const UNCOUNTED: Self = Self { empty: 0, given: 0 };
}

impl Dealer {
    /// `flow` in `2^-64` grains per tick; `burst` in grains, which is what each share can hold.
    pub(super) fn new(flow: u128, burst: u64, now: u64) -> Self {
        let flow = flow.max(1);
        Self {
            flow,
            longest: u64::try_from((u128::MAX >> 1) / flow).unwrap_or(u64::MAX).max(1),
            pot: 0,
            until: now,
            // So that a share can have been empty a burst ago.
            level: u128::from(burst),
            burst,
            filling: BTreeSet::new(),
        }
    }

    /// A new share, full.
    pub(super) fn hand(&self, number: u64) -> Hand {
        Hand {
            number,
            empty: 0,
            given: 0,
        }
    }

    fn burst(&self) -> u128 {
        u128::from(self.burst)
    }

    /// Deals what flows in until `now`. An earlier instant than the latest changes nothing.
    pub(super) fn deal(&mut self, now: u64) {
        let wanted = !self.filling.is_empty() || now <= self.until;
        while self.until < now && !self.filling.is_empty() {
            let ticks = (now - self.until).min(self.longest);
            self.until += ticks;
            self.pot += u128::from(ticks) * self.flow;
            self.share_out();
        }
        // Less than comes in a tick is what the wait for the last share was rounded up by.
        if self.filling.is_empty() && (!wanted || self.pot >= self.flow) {
            self.pot = 0;
        }
        self.until = self.until.max(now);
    }

    fn share_out(&mut self) {
        while let Some(&(empty, number)) = self.filling.first() {
            let shares = self.filling.len() as u128;
            let room = empty + self.burst() - self.level;
            let each = ((self.pot >> 64) / shares).min(room);
            self.level += each;
            self.pot -= (each * shares) << 64;
            if each < room {
                return;
            }
            self.filling.remove(&(empty, number));
        }
    }

    /// Where the share was empty, as the axis stands.
    fn empty(&self, hand: &Hand) -> u128 {
        if self.filling.contains(&(hand.empty, hand.number)) {
            hand.empty
        } else {
            self.level - self.burst()
        }
    }

    /// What the share holds, in grains; negative in debt.
    pub(super) fn held(&self, hand: &Hand) -> i128 {
        self.level as i128 - self.empty(hand) as i128
    }

    pub(super) fn is_full(&self, hand: &Hand) -> bool {
        !self.filling.contains(&(hand.empty, hand.number))
    }

    /// Among how many the rate is shared while this share has room.
    pub(super) fn sharers(&self, hand: &Hand) -> usize {
        self.filling.len() + usize::from(self.is_full(hand))
    }

    fn set_empty(&mut self, hand: &mut Hand, empty: u128) {
        self.filling.remove(&(hand.empty, hand.number));
        hand.empty = empty;
        if empty + self.burst() > self.level {
            self.filling.insert((empty, hand.number));
        }
    }

    /// Takes so many grains if they are there.
    pub(super) fn take(&mut self, hand: &mut Hand, grains: u64) -> Option<Left> {
        let empty = self.empty(hand) + u128::from(grains);
        if empty > self.level {
            return None;
        }
        self.set_empty(hand, empty);
        let given = hand.given;
        Some(Left { empty, given })
    }

    /// Gives back what was taken, as far as it would still be there: not what the share could not have held by now. Returns
    /// whether that was anything.
    pub(super) fn give_back(&mut self, hand: &mut Hand, left: Left, grains: u64) -> bool {
        let empty = self.empty(hand);
        // The room that was left then, less what was dealt since, less what was given back since.
        let grains = left
            .empty
            .saturating_sub(self.floor(hand, left))
            .min(u128::from(grains));
        self.set_empty(hand, empty - grains);
        hand.given += grains;
        grains > 0
    }

    /// Takes so many grains more for what had been left so, into debt if need be. Returns what is left so now: what may still
    /// come back of it, with that.
    pub(super) fn take_more(&mut self, hand: &mut Hand, left: Left, grains: u64) -> Left {
        let kept = left.empty.saturating_sub(self.floor(hand, left));
        let empty = self.empty(hand) + u128::from(grains);
        self.set_empty(hand, empty);
        Left {
            empty: self.level - self.burst() + kept + u128::from(grains),
            given: hand.given,
        }
    }

    /// Below where the share cannot have been empty, by what was given back since.
    fn floor(&self, hand: &Hand, left: Left) -> u128 {
        self.level - self.burst() + (hand.given - left.given)
    }

    /// The share goes. Returns whether that leaves more to the others.
    pub(super) fn leave(&mut self, hand: &Hand) -> bool {
        self.filling.remove(&(hand.empty, hand.number))
    }

    /// The earliest tick at which the share holds so many grains, if nobody takes or gives anything meanwhile. At most a
    /// burst is ever there.
    pub(super) fn holds_at(&self, hand: &Hand, grains: u128) -> u64 {
        let target = self.empty(hand) + grains.min(self.burst());
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
        // Beyond what the number holds it is a lower bound.
        let wanted = wanted.min(u128::MAX >> 64) << 64;
        let ticks = wanted.saturating_sub(self.pot).div_ceil(self.flow);
        self.until.saturating_add(u64::try_from(ticks).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TOKEN: u64 = 1 << GRAIN;

    /// One token per tick.
    fn dealer(burst: u64) -> Dealer {
        Dealer::new(u128::from(TOKEN) << 64, burst * TOKEN, 0)
    }

    fn tokens(dealer: &Dealer, hand: &Hand) -> f64 {
        dealer.held(hand) as f64 / TOKEN as f64
    }

    #[test]
    fn what_a_full_share_does_not_need_goes_to_the_rest() {
        let mut dealer = dealer(10);
        let mut hands: Vec<_> = (0..3).map(|number| dealer.hand(number)).collect();
        // They lack 2, 6 and 10.
        for (hand, lacks) in hands.iter_mut().zip([2, 6, 10]) {
            dealer.take(hand, lacks * TOKEN).unwrap();
        }
        assert_eq!(dealer.holds_at(&hands[2], u128::from(TOKEN) * 10), 18);
        let mut held = Vec::new();
        for now in [3, 6, 10, 14, 16, 18] {
            dealer.deal(now);
            held.push([0, 1, 2].map(|at| tokens(&dealer, &hands[at])));
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
        /// Given shares that take whatever they may, then all that was taken is at most a burst each and what flowed in;
        /// and what one is told to wait for is there at that tick, and not before, when nobody else takes.
        #[test]
        fn no_more_is_dealt_than_flows_in(
            steps in prop::collection::vec((0usize..4, 1u64..6, 0u64..9, any::<bool>()), 1..200),
            burst in 6u64..20,
        ) {
            let mut dealer = dealer(burst);
            let mut hands: Vec<_> = (0..4).map(|number| dealer.hand(number)).collect();
            let (mut now, mut taken) = (0, 0);
            for (at, n, ticks, waits) in steps {
                now += ticks;
                dealer.deal(now);
                let grains = n * TOKEN;
                if waits {
                    let ready = dealer.holds_at(&hands[at], grains.into());
                    if ready > now {
                        dealer.deal(ready - 1);
                        prop_assert!(dealer.held(&hands[at]) < i128::from(grains));
                    }
                    now = now.max(ready);
                    dealer.deal(now);
                    prop_assert!(dealer.held(&hands[at]) >= i128::from(grains));
                }
                if dealer.take(&mut hands[at], grains).is_some() {
                    taken += n;
                }
                for hand in &hands {
                    prop_assert!((0..=i128::from(burst * TOKEN)).contains(&dealer.held(hand)));
                }
                prop_assert!(taken <= 4 * burst + now);
            }
        }

        /// Given shares that want different amounts per tick, when that goes on for long, then each gets what water filling
        /// says: its want, or an equal part of what the modest ones leave.
        #[test]
        fn each_gets_its_max_min_share(wants in prop::collection::vec(1u64..40, 2..6)) {
            // In hundredths of what flows in.
            const BURST: u64 = 8;
            const TICKS: u64 = 5_000;
            let mut dealer = dealer(BURST);
            let mut hands: Vec<_> = (0..wants.len()).map(|number| dealer.hand(number as u64)).collect();
            let (mut owed, mut got) = (vec![0u64; wants.len()], vec![0u64; wants.len()]);
            for now in 1..=TICKS {
                dealer.deal(now);
                for at in 0..wants.len() {
                    // Requests of one token each; a modest backlog, so that wants do not pile up.
                    owed[at] = (owed[at] + wants[at]).min(1_000);
                    while owed[at] >= 100 && dealer.take(&mut hands[at], TOKEN).is_some() {
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
