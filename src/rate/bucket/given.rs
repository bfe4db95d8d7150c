//! Who has given back how much, by the order of their reservations: what tells a give-back that lowered the ground under a
//! reservation from one that only took away what had been put on top of it later.

/// So many give-backs are told apart; more are told apart less well, which gives back less.
const ENTRIES: usize = 64;

/// Amounts by the gross position of the reservation that gave them back: the sum of all that had been taken until then.
/// Positions wrap around at `2^63`; all that are held at a time lie within half of their range.
#[derive(Debug, Default)]
pub(super) struct Given {
    /// In order of position.
    entries: Vec<(u64, u64)>,
}

/// True when `a` lies behind `b`. They have 63 bits that count: so many has half of what counts what was given.
pub(super) fn behind(a: u64, b: u64) -> bool {
    ((a.wrapping_sub(b) << 1) as i64) < 0
}

impl Given {
    /// Makes room for all that will ever be remembered, at once.
    pub(super) fn make_room(&mut self) {
        self.entries
            .reserve_exact((ENTRIES + 1).saturating_sub(self.entries.len()));
    }

    /// True when one more is told apart from all others.
    pub(super) fn has_room(&self) -> bool {
        self.entries.len() < ENTRIES
    }

    /// Counts what the reservation at `position` has given back.
    pub(super) fn add(&mut self, position: u64, units: u64) {
        let is_newest = self.entries.last().is_none_or(|&(newest, _)| behind(newest, position));
        if is_newest && self.has_room() {
            return self.entries.push((position, units));
        }
        let at = self.entries.partition_point(|&(other, _)| behind(other, position));
        match self.entries.get_mut(at) {
            Some((other, sum)) if *other == position => *sum += units,
            _ => self.entries.insert(at, (position, units)),
        }
        if self.entries.len() > ENTRIES {
            // The two newest as one at the older position: newer than fewer, never than more.
            let newest = self.entries.pop().map_or(0, |(_, units)| units);
            if let Some((_, sum)) = self.entries.last_mut() {
                *sum += newest;
            }
        }
    }

    /// What reservations after the one at `position` have given back.
    pub(super) fn by_newer_than(&self, position: u64) -> u64 {
        let newer = self.entries.iter().rev();
        newer
            .take_while(|&&(other, _)| behind(position, other))
            .map(|&(_, units)| units)
            .sum()
    }

    /// Forgets those that nobody will ask for again: a reservation has room left to give back if its position, with what
    /// newer ones gave back, lies beyond `spent`.
    ///
    /// What an entry took lies between it and all before it, so these reach no further, with what it gave back, than it
    /// does without: the first that does not reach far enough, from the newest, is the last that is asked for.
    pub(super) fn forget_spent(&mut self, spent: u64) {
        let mut newer = 0;
        let mut reaches = |&(position, units): &(u64, u64)| {
            let reach = position.wrapping_add(newer);
            newer += units;
            behind(spent, reach)
        };
        let kept = self.entries.iter().rev().take_while(|entry| reaches(entry)).count();
        self.entries.drain(..self.entries.len() - kept);
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_summed_from_the_newest_whatever_the_order_of_giving() {
        let mut given = Given::default();
        for (position, units) in [(30, 3), (10, 1), (20, 2), (20, 5)] {
            given.add(position, units);
        }
        let newer = [5, 10, 20, 29, 30].map(|position| given.by_newer_than(position));
        assert_eq!(newer, [11, 10, 3, 3, 0]);
        // 10 + 10 that newer ones gave back reaches 20, 20 + 3 reaches 23, 30 reaches 30.
        given.forget_spent(19);
        assert_eq!(given.by_newer_than(5), 11);
        given.forget_spent(20);
        assert_eq!(given.by_newer_than(5), 10);
        given.forget_spent(30);
        assert_eq!(given.by_newer_than(5), 0);
    }

    #[test]
    fn positions_wrap_around() {
        let mut given = Given::default();
        given.add(3, 1);
        given.add(u64::MAX - 3, 2);
        assert_eq!(
            (given.by_newer_than(u64::MAX - 9), given.by_newer_than(u64::MAX)),
            (3, 1)
        );
    }

    #[test]
    fn what_one_reservation_gives_back_in_parts_takes_one_entry() {
        let mut given = Given::default();
        given.add(20, 5);
        for _ in 0..2 * ENTRIES {
            given.add(10, 1);
        }
        assert_eq!(given.entries.len(), 2);
        assert_eq!(
            (given.by_newer_than(10), given.by_newer_than(9)),
            (5, 5 + 2 * ENTRIES as u64)
        );
    }

    #[test]
    fn too_many_never_count_as_newer_than_they_are() {
        let mut given = Given::default();
        for position in 0..2 * ENTRIES as u64 {
            given.add(position, 1);
        }
        assert_eq!(given.entries.len(), ENTRIES);
        for position in 0..2 * ENTRIES as u64 {
            assert!(given.by_newer_than(position) < 2 * ENTRIES as u64 - position);
        }
        // Given back from the newest to the oldest, nothing is lost.
        let mut given = Given::default();
        for position in (0..2 * ENTRIES as u64).rev() {
            assert_eq!(given.by_newer_than(position), 2 * ENTRIES as u64 - 1 - position);
            given.add(position, 1);
        }
    }
}
