//! The lowest value of a number since certain moments, in bounded memory: tokens given up since a moment may be missing no
//! more.

/// How many low watermarks are kept apart. Beyond that, two neighbours become one, the lower of them.
const MOST: usize = 64;

/// The low watermarks of a number that rises and falls, each since another moment. Moments are numbered in order.
#[derive(Debug)]
#[cfg_attr(tollgate_proofs, derive(Clone))]
pub(super) struct LowWatermarks {
    /// For moments from this number on, up to the next entry's: the lowest value since. Values rise from one entry to the next.
    since: Vec<(u64, u64)>,
    /// The number of the last moment.
    moment: u64,
}

impl LowWatermarks {
    /// The watermarks of zero.
    pub(super) fn new() -> Self {
        Self {
            since: vec![(0, 0)],
            moment: 0,
        }
    }

    /// Records the present number.
    pub(super) fn note(&mut self, number: u64) {
        let keep = self.since.partition_point(|&(_, low)| low < number);
        if keep < self.since.len() {
            self.since.truncate(keep + 1);
            self.since[keep].1 = number;
        }
    }

    /// Begins a moment with this number. Returns the moment.
    pub(super) fn begin(&mut self, number: u64) -> u64 {
        self.moment += 1;
        self.note(number);
        if self.since.last().is_none_or(|&(_, low)| low < number) {
            if self.since.len() == MOST {
                let mut at = 0;
                self.since.retain(|_| {
                    at += 1;
                    at % 2 == 1
                });
            }
            self.since.push((self.moment, number));
        }
        self.moment
    }

    /// The lowest value since that moment.
    pub(super) fn since(&self, moment: u64) -> u64 {
        self.since[self.place(moment)].1
    }

    /// Lowers the values since that moment by `by`, which is at most the lowest of them.
    pub(super) fn lower(&mut self, moment: u64, by: u64) {
        let place = self.place(moment);
        for (_, low) in &mut self.since[place..] {
            *low = low.saturating_sub(by);
        }
        let lowest = self.since[place].1;
        let keep = self.since[..place].partition_point(|&(_, low)| low < lowest);
        if keep < place {
            self.since[keep].1 = lowest;
            self.since.drain(keep + 1..=place);
        }
    }

    fn place(&self, moment: u64) -> usize {
        self.since
            .partition_point(|&(first, _)| first <= moment)
            .saturating_sub(1)
    }
}

#[cfg(all(test, not(tollgate_proofs)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The full history, in order, and the beginning of each moment.
    #[derive(Default)]
    struct All {
        numbers: Vec<u64>,
        moments: Vec<usize>,
    }

    impl All {
        fn since(&self, moment: u64) -> u64 {
            let from = self.moments[moment as usize - 1];
            self.numbers[from..].iter().copied().min().unwrap()
        }
    }

    proptest! {
        /// The watermarks equal those of the full history.
        #[test]
        fn they_are_the_low_watermarks(doings in prop::collection::vec((0_u8..8, 0_u64..30, 0_usize..99), 1..200)) {
            let (mut low_watermarks, mut all) = (LowWatermarks::new(), All::default());
            for (doing, number, which) in doings {
                match doing {
                    0..3 => {
                        low_watermarks.note(number);
                        all.numbers.push(number);
                    }
                    3..7 => {
                        all.moments.push(all.numbers.len());
                        all.numbers.push(number);
                        prop_assert_eq!(low_watermarks.begin(number), all.moments.len() as u64);
                    }
                    _ if !all.moments.is_empty() => {
                        let moment = (which % all.moments.len()) as u64 + 1;
                        let by = all.since(moment).min(number);
                        low_watermarks.lower(moment, by);
                        let from = all.moments[moment as usize - 1];
                        all.numbers[from..].iter_mut().for_each(|number| *number -= by);
                    }
                    _ => {}
                }
                for moment in 1..=all.moments.len() as u64 {
                    prop_assert_eq!(low_watermarks.since(moment), all.since(moment), "since {}", moment);
                }
            }
        }
    }

    #[test]
    fn beyond_the_bound_two_neighbours_become_the_lower_one() {
        let mut low_watermarks = LowWatermarks::new();
        for number in 1..=1_000 {
            assert_eq!(low_watermarks.begin(number), number);
        }
        assert!(low_watermarks.since.len() <= MOST);
        assert!((1..=1_000).all(|moment| low_watermarks.since(moment) <= moment));
        assert!(low_watermarks.since(1_000) > 900, "of late they are finer");
    }
}
