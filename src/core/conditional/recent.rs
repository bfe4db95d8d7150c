//! Recent counts: over the last span, in tenths that are forgotten one by one.

/// The number of parts of a span. A sum covers the current part and all but one before it: 9 to 10 tenths.
pub(crate) const PARTS: usize = 10;

/// The counts of one part.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Counts {
    /// Admitted units.
    pub(crate) units: u64,
    /// Admissions that ended, and their total time, in ticks.
    pub(crate) ended: u64,
    pub(crate) ticks: u64,
    /// Refused requests.
    pub(crate) refused: u64,
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.units = self.units.saturating_add(other.units);
        self.ended = self.ended.saturating_add(other.ended);
        self.ticks = self.ticks.saturating_add(other.ticks);
        self.refused = self.refused.saturating_add(other.refused);
    }
}

/// The ring of parts.
#[derive(Debug)]
pub(crate) struct Recent {
    parts: [Counts; PARTS],
    /// The length of a part.
    ticks: u64,
    /// The number of the current part, from the clock's origin on.
    latest: u64,
}

impl Recent {
    /// Parts of `ticks` each.
    pub(crate) fn new(ticks: u64, now: u64) -> Self {
        let ticks = ticks.max(1);
        Self {
            parts: [Counts::default(); PARTS],
            ticks,
            latest: now / ticks,
        }
    }

    /// Forgets parts that are over at `now`. A stale reading counts as the latest.
    fn advance(&mut self, now: u64) {
        let number = now / self.ticks;
        let passed = number.saturating_sub(self.latest).min(PARTS as u64);
        for part in 0..passed {
            self.parts[((number - part) % PARTS as u64) as usize] = Counts::default();
        }
        self.latest = self.latest.max(number);
    }

    /// The part that runs at `now`.
    pub(crate) fn at(&mut self, now: u64) -> &mut Counts {
        self.advance(now);
        &mut self.parts[(self.latest % PARTS as u64) as usize]
    }

    /// The part that ran at `then`, unless it is forgotten at `now`.
    pub(crate) fn past(&mut self, then: u64, now: u64) -> Option<&mut Counts> {
        self.advance(now);
        let number = (then / self.ticks).min(self.latest);
        (self.latest - number < PARTS as u64).then(|| &mut self.parts[(number % PARTS as u64) as usize])
    }

    /// All of the last span.
    pub(crate) fn sum(&mut self, now: u64) -> Counts {
        self.advance(now);
        self.without(0)
    }

    /// The sum once `passed` more parts have ended.
    fn without(&self, passed: u64) -> Counts {
        let mut sum = Counts::default();
        for age in 0..(PARTS as u64).saturating_sub(passed) {
            if let Some(number) = self.latest.checked_sub(age) {
                sum.add(&self.parts[(number % PARTS as u64) as usize]);
            }
        }
        sum
    }

    /// The first instant after `now` at which the sum fulfils `low`, if nothing happens meanwhile.
    pub(crate) fn until(&mut self, now: u64, low: impl Fn(&Counts) -> bool) -> Option<u64> {
        self.advance(now);
        (1..=PARTS as u64)
            .find(|&passed| low(&self.without(passed)))
            .map(|passed| (self.latest + passed).saturating_mul(self.ticks))
    }
}

#[cfg(test)]
mod tests {
    use super::{Counts, PARTS, Recent};

    #[test]
    fn a_part_is_forgotten_after_a_span() {
        let mut recent = Recent::new(10, 0);
        recent.at(5).units += 3;
        recent.at(25).units += 4;
        assert_eq!(recent.sum(99).units, 7);
        assert_eq!(recent.sum(100).units, 4);
        assert_eq!(recent.sum(119).units, 4);
        assert_eq!(recent.sum(120).units, 0);
    }

    #[test]
    fn the_instant_at_which_it_falls_is_exact() {
        let mut recent = Recent::new(10, 0);
        recent.at(5).units += 3;
        recent.at(25).units += 4;
        let to = |most: u64| move |sum: &Counts| sum.units <= most;
        assert_eq!(recent.until(30, to(4)), Some(100));
        assert_eq!(recent.until(30, to(0)), Some(120));
        assert_eq!(recent.sum(119).units, 4);
        assert_eq!(recent.until(30, |_| false), None);
    }

    #[test]
    fn a_past_part_is_found_until_it_is_forgotten() {
        let mut recent = Recent::new(10, 0);
        recent.at(5).units += 3;
        recent.past(5, 99).unwrap().units -= 1;
        assert_eq!(recent.sum(99).units, 2);
        assert_eq!(recent.past(5, 100), None);
        assert_eq!(recent.sum(109).units, 0);
    }

    #[test]
    fn a_past_part_is_found_wherever_it_lies() {
        let mut recent = Recent::new(10, 0);
        recent.at(95).units += 3;
        recent.past(95, 184).unwrap().units -= 1;
        assert_eq!(recent.sum(184).units, 2);
        assert_eq!(recent.past(95, 190), None);
    }

    #[test]
    fn a_stale_reading_counts_as_the_latest() {
        let mut recent = Recent::new(10, 0);
        recent.at(1_000).units += 1;
        recent.at(1).units += 1;
        assert_eq!(recent.sum(1_000).units, 2);
        assert_eq!(recent.sum(1_000 + 10 * PARTS as u64).units, 0);
    }
}
