//! A reserve that deposits fill and reservations drain.
//!
//! A deposit into a full reserve overflows. So a cancelled reservation gives back `min(n, least)`, where `least` is the least
//! that has been missing since it was made: what exceeds that would have overflowed. From then on the reserve is as if the
//! reservation had never been made, also for other reservations that are cancelled later.

use std::collections::VecDeque;

/// At most this many reservations are told apart. The oldest two beyond that count as one, which gives back less.
const ENTRIES: usize = 64;

#[derive(Clone, Debug)]
pub(crate) struct Reserve {
    size: u64,
    /// What the reserve lacks.
    missing: u64,
    /// The number of the latest reservation.
    latest: u64,
    /// The number of a reservation, and the least that has been missing since it was made. An entry holds for all reservations
    /// up to the next. Numbers and amounts ascend strictly; no amount is zero.
    least: VecDeque<(u64, u64)>,
}

impl Reserve {
    /// A full reserve.
    pub(crate) fn new(size: u64) -> Self {
        Self {
            size,
            missing: 0,
            latest: 0,
            least: VecDeque::new(),
        }
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn held(&self) -> u64 {
        self.size - self.missing
    }

    /// Takes `amount` and returns the number of the reservation, if it is held.
    pub(crate) fn take(&mut self, amount: u64) -> Option<u64> {
        if amount > self.held() {
            return None;
        }
        if amount > 0 {
            self.missing += amount;
            self.latest += 1;
            self.least.push_back((self.latest, self.missing));
            if self.least.len() > ENTRIES {
                self.least.remove(1);
            }
        }
        Some(self.latest)
    }

    /// Adds `amount`. What does not fit is gone.
    pub(crate) fn add(&mut self, amount: u64) {
        self.missing = self.missing.saturating_sub(amount);
        let kept = self.least.partition_point(|&(_, least)| least < self.missing);
        if let Some((_, least)) = self.least.get_mut(kept) {
            *least = self.missing;
            self.least.truncate(if self.missing == 0 { 0 } else { kept + 1 });
        }
    }

    /// Gives back `amount` of a reservation, as far as that would not have overflowed.
    pub(crate) fn give_back(&mut self, number: u64, amount: u64) {
        let after = self.least.partition_point(|&(first, _)| first <= number);
        let Some(at) = after.checked_sub(1) else { return };
        let amount = amount.min(self.least[at].1);
        self.missing -= amount;
        // `amount` less has been missing ever since.
        self.least.range_mut(at..).for_each(|(_, least)| *least -= amount);
        let left = self.least[at].1;
        let as_much = self.least.partition_point(|&(_, least)| least < left);
        self.least[as_much].1 = left;
        self.least.drain(as_much + 1..=at);
        if left == 0 {
            self.least.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Take(u64),
        Add(u64),
        Cancel(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0u64..6).prop_map(Step::Take),
            3 => (1u64..8).prop_map(Step::Add),
            3 => (0usize..6).prop_map(Step::Cancel),
        ];
        vec(step, 1..60)
    }

    proptest! {
        /// Given any reservations, deposits and cancels in any order, then as much is held as if what was cancelled had never
        /// been reserved.
        #[test]
        fn a_cancel_leaves_what_would_be_held_without_the_reservation(steps in steps()) {
            let mut reserve = Reserve::new(12);
            // The number of a reservation, and what it took; zero for a deposit.
            let mut history: Vec<(u64, i64)> = Vec::new();
            let mut made = Vec::new();
            for step in steps {
                match step {
                    Step::Take(n) => {
                        if let Some(number) = reserve.take(n) {
                            made.push((number, n, history.len()));
                            history.push((number, n as i64));
                        }
                    }
                    Step::Add(n) => {
                        reserve.add(n);
                        history.push((0, -(n as i64)));
                    }
                    Step::Cancel(which) if which < made.len() => {
                        let (number, n, at) = made.remove(which);
                        reserve.give_back(number, n);
                        history[at].1 = 0;
                    }
                    Step::Cancel(_) => {}
                }
                let missing = history.iter().fold(0, |missing: i64, (_, change)| (missing + change).max(0));
                prop_assert_eq!(reserve.held() as i64, 12 - missing);
            }
        }
    }

    #[test]
    fn of_many_reservations_the_oldest_give_back_less_and_none_gives_back_more() {
        let mut reserve = Reserve::new(1_000);
        let made: Vec<_> = (0..2 * ENTRIES).map(|_| reserve.take(2).unwrap()).collect();
        assert_eq!(reserve.least.len(), ENTRIES);
        for number in made.into_iter().rev() {
            let before = reserve.held();
            reserve.give_back(number, 2);
            let back = reserve.held() - before;
            assert!(
                back == 2 || back == 0 && number <= ENTRIES as u64,
                "{number} gave back {back}"
            );
        }
    }
}
