//! The counters of one level: plain data, without a clock and without a lock. A unit is *taken* from an instant on, and counts in
//! the period of that instant. While its admission runs it is *open*: it may be given back there, and nowhere else.
//!
//! ```text
//!   take --> open --close--> used
//!              '--give_back--> returned
//!
//!   a new period: all that was taken before is out of the count
//! ```
//! Invariants, after every operation: `total` is the sum of the `taken` of all slots, and in each slot `open <= taken`.
//!
//! A period of the calendar is one slot. A rolling span is cut into [`SEGMENTS`] slots, beside the one that is filled: so it covers the
//! span at any instant, and a unit comes back at most a segment late.

use crate::lend::Lent;
use crate::period::Span;
use std::ops::{Deref, DerefMut};

/// The parts into which a rolling span is cut.
pub(crate) const SEGMENTS: u64 = 16;

/// How instants fall into slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Calls in flight: one slot for ever.
    Held,
    /// The periods of a calendar: one slot, for the current one.
    Calendar,
    /// The current segment of this many nanoseconds, and the [`SEGMENTS`] before it.
    Rolling(u64),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Slot {
    taken: u64,
    open: u64,
}

/// Lengths that no segment has.
const CALENDAR: u64 = 0;
const HELD: u64 = u64::MAX;

/// What one limit of one level counts. Small: most of an admission is the wait for the memory of its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Counter {
    /// All that counts now.
    total: u64,
    current: Slot,
    /// The current period. Of a rolling span `began` is the start of the current segment.
    span: Span,
    /// See [`shape`](Self::shape): the nanoseconds of a segment, or one of two numbers.
    segment: u64,
    /// The segments before the current one, each at its number modulo their count.
    older: Option<Box<[Slot; SEGMENTS as usize]>>,
    /// The numbers have reached their end: whose units are missing is not known, so nothing comes back until the period is over.
    saturated: bool,
    /// What the children of the level have claimed and spent of it. `None` as long as they have nothing.
    pub(crate) lent: Option<Box<Lent>>,
}

impl Counter {
    pub(crate) fn new(shape: Shape) -> Self {
        let is_rolling = matches!(shape, Shape::Rolling(_));
        Self {
            segment: match shape {
                Shape::Calendar => CALENDAR,
                Shape::Held => HELD,
                Shape::Rolling(segment) => segment,
            },
            total: 0,
            saturated: false,
            current: Slot::default(),
            older: is_rolling.then(Box::default),
            span: Span {
                due: if shape == Shape::Held { u64::MAX } else { 0 },
                ..Span::NONE
            },
            lent: None,
        }
    }

    #[inline]
    pub(crate) fn shape(&self) -> Shape {
        match self.segment {
            CALENDAR => Shape::Calendar,
            HELD => Shape::Held,
            segment => Shape::Rolling(segment),
        }
    }

    /// Moves on to the period of a counter of the same shape.
    pub(crate) fn follow(&mut self, other: &Self) {
        if self.span != other.span {
            self.advance_slow(other.span.began, |_| other.span);
        }
    }

    /// What counts against the limit now.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// What is open of it.
    pub(crate) fn open(&self) -> u64 {
        self.older().iter().map(|slot| slot.open).sum::<u64>() + self.current.open
    }

    /// Empty, unless the span rolls.
    fn older(&self) -> &[Slot] {
        self.older.as_deref().map_or(&[], |older| older)
    }

    fn older_mut(&mut self) -> &mut [Slot] {
        self.older.as_deref_mut().map_or(&mut [], |older| older)
    }

    /// Nothing counts.
    pub(crate) fn is_new(&self) -> bool {
        self.total == 0
    }

    /// The start of the period that the counter is in.
    pub(crate) fn began(&self) -> u64 {
        self.span.began
    }

    /// When the current period ends; for a rolling span, when the next unit that counts comes back.
    pub(crate) fn ends(&self) -> Option<u64> {
        match self.shape() {
            Shape::Held => None,
            Shape::Calendar => Some(self.span.ends),
            Shape::Rolling(_) => self.room_at(self.total.saturating_sub(1)),
        }
    }

    /// Moves on to the period of `now`. `span` says which that is, for a calendar.
    #[inline]
    pub(crate) fn advance(&mut self, now: u64, span: impl FnOnce(u64) -> Span) {
        if now >= self.span.due {
            self.advance_slow(now, span);
        }
    }

    #[cold]
    fn advance_slow(&mut self, now: u64, span: impl FnOnce(u64) -> Span) {
        match self.shape() {
            Shape::Held => {}
            Shape::Calendar => {
                let span = span(now);
                if span.began != self.span.began {
                    (self.total, self.current, self.saturated) = (0, Slot::default(), false);
                }
                self.span = span;
            }
            Shape::Rolling(segment) => {
                let (from, to) = (self.span.began / segment, now / segment);
                // One step for each segment that passed, until nothing is left in any.
                for number in from..to.min(from + SEGMENTS + 1) {
                    let newest = std::mem::take(&mut self.current);
                    let place = &mut self.older_mut()[(number % SEGMENTS) as usize];
                    let oldest = std::mem::replace(place, newest);
                    self.total -= oldest.taken;
                }
                self.saturated &= self.total > 0;
                let began = to * segment;
                let ends = began.saturating_add(segment);
                self.span = Span { began, ends, due: ends };
            }
        }
    }

    /// Where the units that were taken at `at` are, if they still count.
    fn slot(&mut self, at: u64) -> Option<&mut Slot> {
        match self.shape() {
            _ if at >= self.span.began => Some(&mut self.current),
            Shape::Rolling(segment) => {
                let number = at / segment;
                let recent = self.span.began / segment - number <= SEGMENTS;
                recent.then(|| &mut self.older_mut()[(number % SEGMENTS) as usize])
            }
            Shape::Held | Shape::Calendar => None,
        }
    }

    /// Takes `units` at `now`, to which it has advanced, whether there is room or not.
    #[inline]
    pub(crate) fn take(&mut self, units: u64) {
        let units = self.countable(units);
        self.total += units;
        self.current.taken += units;
        self.current.open += units;
    }

    /// Takes more of what was taken at `at`, if that still counts.
    pub(crate) fn take_more(&mut self, at: u64, units: u64) {
        if self.slot(at).is_none() {
            return;
        }
        let units = self.countable(units);
        if let Some(slot) = self.slot(at) {
            slot.taken += units;
            slot.open += units;
            self.total += units;
        }
    }

    /// As many of `units` as the numbers hold.
    #[inline]
    fn countable(&mut self, units: u64) -> u64 {
        let most = u64::MAX - self.total;
        self.saturated |= units > most;
        units.min(most)
    }

    /// Gives `units` back that were taken at `at`. Nothing comes back of a period that is over.
    #[inline]
    pub(crate) fn give_back(&mut self, at: u64, units: u64) {
        if self.saturated {
            return self.close(at, units);
        }
        if let Some(slot) = self.slot(at) {
            let units = units.min(slot.open);
            slot.open -= units;
            slot.taken -= units;
            self.total -= units;
        }
    }

    /// The admission that took `units` at `at` has ended: they are used.
    #[inline]
    pub(crate) fn close(&mut self, at: u64, units: u64) {
        if let Some(slot) = self.slot(at) {
            slot.open -= units.min(slot.open);
        }
    }

    /// True where `at` is in the slot that is filled now.
    pub(crate) fn is_current(&self, at: u64) -> bool {
        at >= self.span.began
    }

    /// When at most `left` of what counts is left, if time alone brings that about.
    pub(crate) fn room_at(&self, left: u64) -> Option<u64> {
        match self.shape() {
            _ if self.total <= left => Some(self.span.began),
            Shape::Held => None,
            Shape::Calendar => Some(self.span.ends),
            Shape::Rolling(segment) => {
                let number = self.span.began / segment;
                let mut total = self.total;
                for past in (0..=SEGMENTS).rev().filter(|past| *past <= number) {
                    let slot = match past {
                        0 => self.current,
                        _ => self.older()[((number - past) % SEGMENTS) as usize],
                    };
                    total -= slot.taken;
                    if total <= left {
                        return Some((number - past + SEGMENTS + 1).saturating_mul(segment));
                    }
                }
                None
            }
        }
    }

    /// The same counts, of which nothing is open: for a level that begins with what others have used.
    pub(crate) fn inherited(&self) -> Self {
        let mut heir = match self.shape() {
            Shape::Held => Self::new(Shape::Held),
            _ => self.clone(),
        };
        heir.lent = None;
        heir.current.open = 0;
        heir.older_mut().iter_mut().for_each(|slot| slot.open = 0);
        heir
    }
}

/// The counters of a level, in the order of the limits of its rule. The only one of most levels stands in place.
#[derive(Clone)]
pub(crate) enum Counters {
    One(Counter),
    All(Box<[Counter]>),
}

impl Deref for Counters {
    type Target = [Counter];

    #[inline]
    fn deref(&self) -> &[Counter] {
        match self {
            Self::One(counter) => std::slice::from_ref(counter),
            Self::All(counters) => counters,
        }
    }
}

impl DerefMut for Counters {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Counter] {
        match self {
            Self::One(counter) => std::slice::from_mut(counter),
            Self::All(counters) => counters,
        }
    }
}

impl FromIterator<Counter> for Counters {
    fn from_iter<I: IntoIterator<Item = Counter>>(counters: I) -> Self {
        let mut counters: Vec<Counter> = counters.into_iter().collect();
        match (counters.pop(), counters.is_empty()) {
            (Some(only), true) => Self::One(only),
            (last, _) => {
                counters.extend(last);
                Self::All(counters.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::laws::holds;

    /// Periods of 100 that begin at multiples of it.
    fn hundreds(now: u64) -> Span {
        let began = now / 100 * 100;
        let ends = began + 100;
        Span { began, ends, due: ends }
    }

    /// Each admission as a reference keeps it.
    #[derive(Clone, Copy, Debug)]
    struct Taken {
        at: u64,
        units: u64,
        open: u64,
    }

    fn counts(shape: Shape, taken: &Taken, now: u64) -> bool {
        match shape {
            Shape::Held => true,
            Shape::Calendar => taken.at / 100 == now / 100,
            Shape::Rolling(segment) => now / segment - taken.at / segment <= SEGMENTS,
        }
    }

    /// Given any program of takes, returns, closes and pauses, then the counter equals a list of all that was taken: after each step
    /// the total is what is used and what is open, and room is told for the first instant at which it is there. Once numbers have
    /// reached their end, nothing comes back until nothing counts any more.
    #[test]
    fn a_counter_equals_the_list_of_what_was_taken() {
        holds([2, 4], |inputs| {
            let shape = inputs.one_of(&[Shape::Held, Shape::Calendar, Shape::Rolling(10)]);
            let mut counter = Counter::new(shape);
            let (mut now, mut all, mut is_lost) = (0, Vec::<Taken>::new(), false);
            if inputs.below(2) == 1 {
                // Some begin with more than the numbers hold.
                counter.advance(now, hundreds);
                counter.take(u64::MAX);
                counter.take(1);
                is_lost = true;
                all.push(Taken {
                    at: now,
                    units: u64::MAX,
                    open: u64::MAX,
                });
            }
            while inputs.goes_on() {
                now += inputs.number(300, 0) + inputs.one_of(&[0, 10, 160]);
                let mut behind = counter.clone();
                counter.advance(now, hundreds);
                // One of the same shape follows.
                behind.follow(&counter);
                assert_eq!((behind.total(), behind.open()), (counter.total(), counter.open()));
                let (what, which) = (inputs.below(4), inputs.below(all.len().max(1) as u64) as usize);
                let sum: u64 = all
                    .iter()
                    .filter(|taken| counts(shape, taken, now))
                    .map(|taken| taken.units)
                    .sum();
                is_lost &= sum > 0;
                // The end of numbers among them.
                let units = match inputs.number(1 << 50, 3) {
                    3 => u64::MAX,
                    units => units,
                };
                let most = u64::MAX - sum;
                match (what, all.get_mut(which)) {
                    (1, Some(taken)) if taken.open > 0 => {
                        let units = units.min(taken.open);
                        counter.give_back(taken.at, units);
                        taken.units -= if is_lost { 0 } else { units };
                        taken.open -= units;
                    }
                    (2, Some(taken)) => {
                        counter.close(taken.at, taken.open);
                        taken.open = 0;
                    }
                    (3, Some(taken)) if taken.open > 0 => {
                        counter.take_more(taken.at, units);
                        if counts(shape, taken, now) {
                            is_lost |= units > most;
                            taken.units += units.min(most);
                            taken.open += units.min(most);
                        }
                    }
                    _ => {
                        counter.take(units);
                        is_lost |= units > most;
                        all.push(Taken {
                            at: now,
                            units: units.min(most),
                            open: units.min(most),
                        });
                    }
                }
                let here = |taken: &&Taken| counts(shape, taken, now);
                let total: u64 = all.iter().filter(here).map(|taken| taken.units).sum();
                let open: u64 = all.iter().filter(here).map(|taken| taken.open).sum();
                assert_eq!((counter.total(), counter.open()), (total, open), "at {now}");
                assert_eq!(counter.is_new(), total == 0);
                let left_at = |at: u64| -> u64 {
                    let all = all.iter().filter(|taken| counts(shape, taken, at));
                    all.map(|taken| taken.units).sum()
                };
                for left in [0, total / 2, total.saturating_sub(1)] {
                    match counter.room_at(left) {
                        Some(at) if total <= left => assert!(at <= now),
                        Some(at) => assert!(left_at(at) <= left && left_at(at - 1) > left, "{left} at {at}"),
                        None => assert_eq!(shape, Shape::Held),
                    }
                }
                let ends = counter.ends();
                let began = match shape {
                    Shape::Held => 0,
                    Shape::Calendar => now / 100 * 100,
                    Shape::Rolling(segment) => now / segment * segment,
                };
                assert_eq!(counter.began(), began);
                assert!(counter.is_current(began) && (began == 0 || !counter.is_current(began - 1)));
                assert!(ends.is_none() == (shape == Shape::Held) && behind.began() == began);
                assert!(ends.is_none_or(|at| at > now || (total == 0 && shape != Shape::Calendar)));
                let heir = counter.inherited();
                assert_eq!(heir.total(), if shape == Shape::Held { 0 } else { total });
                assert_eq!(heir.open(), 0);
            }
            // Of any number of limits each is counted by itself.
            let limits = inputs.below(4);
            let mut counters: Counters = (0..limits).map(|_| counter.clone()).collect();
            for at in 0..counters.len() {
                counters[at].take(at as u64);
            }
            let totals = counters.iter().map(Counter::total);
            assert!(totals.eq((0..limits).map(|at| counter.total().saturating_add(at))));
        });
    }

    #[test]
    fn a_span_of_the_rolling_length_never_has_more_than_the_total() {
        let mut counter = Counter::new(Shape::Rolling(10));
        counter.advance(9, hundreds);
        counter.take(5);
        // 16 segments of 10 are the span; the segment of 9 leaves when 160 have passed since its end.
        counter.advance(169, hundreds);
        assert_eq!(counter.total(), 5);
        counter.advance(170, hundreds);
        assert_eq!(counter.total(), 0);
    }

    #[test]
    fn an_earlier_instant_counts_as_the_latest() {
        let mut counter = Counter::new(Shape::Calendar);
        counter.advance(100, hundreds);
        counter.advance(99, hundreds);
        counter.take(3);
        assert_eq!((counter.began(), counter.total()), (100, 3));
        counter.give_back(99, 3);
        assert_eq!(counter.total(), 3, "what was taken before the period is not of it");
    }

    #[test]
    fn no_number_overflows() {
        let mut counter = Counter::new(Shape::Calendar);
        counter.advance(1, hundreds);
        counter.take(u64::MAX);
        counter.take(u64::MAX);
        counter.take_more(1, 7);
        assert_eq!((counter.total(), counter.open()), (u64::MAX, u64::MAX));
        // Whose units these are is not known any more.
        counter.give_back(1, u64::MAX);
        assert_eq!((counter.total(), counter.open()), (u64::MAX, 0));
        counter.advance(100, hundreds);
        counter.take(3);
        counter.give_back(100, 2);
        assert_eq!(counter.total(), 1);
    }
}
