//! The part of a window that this process has taken: a process with an equal part lets the others ask first.
//!
//! Units that were taken at one instant come back at one instant, and all processes ask then. What is left when each has asked once
//! would go to those that are nearest to the store, each time. So a process that has an equal part of a window that was full asks for
//! more a segment later, at most [`YIELD`] later: by then the others have what they want, and what is left is for any. If as much as
//! a part is left, the window is not scarce.

use crate::remote::backend::{Rule, Usage};
use crate::time::{Clock, Instant};
use std::collections::VecDeque;
use std::time::Duration;

/// The others ask at the instant at which units come back, and a round trip later at the latest.
const YIELD: Duration = Duration::from_millis(100);

#[derive(Debug)]
#[cfg_attr(tollgate_proofs, derive(Clone))]
pub(super) struct WindowPart {
    clock: Clock,
    length: Duration,
    /// Units that were taken, each with the instant at which they have left the window.
    taken: VecDeque<(Instant, u64)>,
    /// Until when it counts as full: its units come back after its length, and may be taken at once.
    full_until: Instant,
    /// Others ask first until then.
    yields_until: Option<Instant>,
    /// The last grant came after the others had asked.
    has_yielded: bool,
}

impl WindowPart {
    pub(super) fn new(length: Duration, clock: &Clock, now: Instant) -> Self {
        Self {
            clock: clock.clone(),
            length,
            taken: VecDeque::new(),
            full_until: now,
            yields_until: None,
            has_yielded: false,
        }
    }

    fn segment(&self) -> Duration {
        self.length / Rule::SEGMENTS as u32
    }

    /// The store has granted units.
    pub(super) fn receive(&mut self, units: u64, now: Instant) {
        self.has_yielded = self.yields_until.take().is_some_and(|until| until <= now);
        let segment = self.segment();
        // Units come back a segment late.
        let until = self.clock.after(now, self.length + segment);
        // As exact as the store, in as many lots as segments.
        match self.taken.back_mut() {
            Some((last, lot)) if self.clock.between(*last, until) < segment => *lot += units,
            _ => self.taken.push_back((until, units)),
        }
    }

    /// The store has told its usage after a grant. If the others left an equal part, the window is not scarce. A short segment may be
    /// less than a round trip of theirs; its window is not full for long.
    pub(super) fn note_left(&mut self, usage: Usage, now: Instant) {
        let part = usage.limit.div_ceil(usage.sessions.max(1));
        let have_asked = std::mem::take(&mut self.has_yielded) && self.segment() >= YIELD;
        if have_asked && usage.in_use.saturating_add(part) <= usage.limit {
            self.full_until = now;
        }
    }

    /// The store had too few units.
    pub(super) fn note_full(&mut self, now: Instant) {
        self.full_until = self.clock.after(now, 2 * self.length);
    }

    /// The most units to ask for now, at least `need`; or until when others ask first.
    pub(super) fn most(&mut self, need: u64, usage: Usage, now: Instant) -> Result<u64, Instant> {
        while self.taken.front().is_some_and(|&(until, _)| until <= now) {
            self.taken.pop_front();
        }
        if self.full_until <= now {
            return Ok(u64::MAX);
        }
        let part = usage.limit.div_ceil(usage.sessions.max(1));
        let taken = self.taken.iter().map(|&(_, units)| units).sum();
        let left = part.saturating_sub(taken);
        if left >= need {
            return Ok(left);
        }
        let next = self.clock.after(now, self.segment().min(YIELD));
        match *self.yields_until.get_or_insert(next) {
            until if until > now => Err(until),
            _ => Ok(u64::MAX),
        }
    }
}

#[cfg(all(test, not(tollgate_proofs)))]
mod tests {
    use super::*;
    use crate::ManualClock;

    #[test]
    fn a_process_with_an_equal_part_of_a_full_window_asks_a_segment_later() {
        let (clock, length) = (ManualClock::new(), Duration::from_millis(640));
        let usage = Usage {
            limit: 10,
            sessions: 4,
            ..Usage::default()
        };
        let mut part = WindowPart::new(length, &clock, clock.now());
        part.receive(2, clock.now());
        assert_eq!(part.most(1, usage, clock.now()), Ok(u64::MAX), "it was never full");
        part.note_full(clock.now());
        assert_eq!(part.most(1, usage, clock.now()), Ok(1), "three are an equal part");
        let later = clock.clock().after(clock.now(), length / 64);
        assert_eq!(part.most(2, usage, clock.now()), Err(later));
        clock.advance(length / 64);
        assert_eq!(part.most(2, usage, clock.now()), Ok(u64::MAX), "the others have asked");
        part.receive(2, clock.now());
        part.note_left(Usage { in_use: 5, ..usage }, clock.now());
        assert!(part.most(1, usage, clock.now()).is_err(), "and ask again");
        clock.advance(length);
        assert_eq!(part.most(1, usage, clock.now()), Ok(1), "two of four have left");
        clock.advance(length);
        assert_eq!(
            part.most(9, usage, clock.now()),
            Ok(u64::MAX),
            "it was not full of late"
        );
    }

    #[test]
    fn a_long_window_of_which_the_others_leave_a_part_is_not_scarce() {
        let (clock, length) = (ManualClock::new(), Duration::from_secs(86_400));
        let usage = Usage {
            limit: 10,
            sessions: 5,
            ..Usage::default()
        };
        for (in_use, is_scarce) in [(9, true), (8, false)] {
            let mut part = WindowPart::new(length, &clock, clock.now());
            part.receive(2, clock.now());
            part.note_full(clock.now());
            let later = clock.clock().after(clock.now(), YIELD);
            assert_eq!(
                part.most(1, usage, clock.now()),
                Err(later),
                "the others need no segment"
            );
            clock.advance(YIELD);
            assert_eq!(part.most(1, usage, clock.now()), Ok(u64::MAX));
            part.receive(1, clock.now());
            part.note_left(Usage { in_use, ..usage }, clock.now());
            assert_eq!(part.most(1, usage, clock.now()).is_err(), is_scarce);
        }
    }
}
